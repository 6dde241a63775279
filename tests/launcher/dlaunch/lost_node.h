// Jobs that lose nodes: two ranks a node that say where they are, in each epoch.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {

// The line that a rank of the jobs below prints.
inline std::string Line(int epoch, int rank, int size, int node) {
  const std::string name = std::to_string(rank);
  return "[" + name + "] epoch " + std::to_string(epoch) + " rank " + name + " of " + std::to_string(size) + " node " +
         std::to_string(node) + "\n";
}

// A job whose ranks go on to the next epoch when there is one, up to a last one, in which they end.
inline std::unique_ptr<DlaunchProcess> Start(std::vector<std::string> options, int last_epoch) {
  options.insert(options.end(), {"--nproc-per-node", "2", "--max-restarts", "5", "--env",
                                 "LAST=" + std::to_string(last_epoch), "sh", "-c",
                                 "echo epoch $COHORT_EPOCH rank $RANK of $WORLD_SIZE node $NODE_RANK; "
                                 "[ $COHORT_EPOCH = $LAST ] || sleep 1000"});
  return std::make_unique<DlaunchProcess>(options);
}

inline void WaitForRanks(DlaunchProcess* job, int epoch, int nodes) {
  for (int rank = 0; rank < 2 * nodes; ++rank) {
    const std::string line = Line(epoch, rank, 2 * nodes, rank / 2);
    ASSERT_TRUE(job->WaitUntil([&] { return job->out().find(line) != std::string::npos; })) << line << job->err();
  }
}

inline void SignalAgent(const DlaunchProcess& job, int index, int signal) { ::kill(job.AgentProcess(index), signal); }

inline void ExpectSaid(const DlaunchProcess& job, const std::string& text) {
  EXPECT_NE(job.err().find(text), std::string::npos) << "'" << text << "' is not in\n" << job.err();
}

// A command line that can't work is refused with its cause and its remedy.
inline void ExpectRefused(std::vector<std::string> options, const std::string& cause, const std::string& remedy) {
  options.emplace_back("true");
  DlaunchProcess job(options);
  EXPECT_EQ(job.Wait(), 2) << job.err();
  ExpectSaid(job, cause);
  ExpectSaid(job, remedy);
}

}  // namespace cohort::launcher
