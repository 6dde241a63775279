// A job that runs: two simulated nodes of two ranks (and those that `options` add with --simulate-nodes), and its id,
// found by its processes among all that may run here.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cohort/launcher/agent/watch/process_state.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {

class RunningJob : public testing::Test {
 protected:
  // Returns when every rank of the shell script has said "up".
  void Start(const std::string& script, const std::vector<std::string>& options = {}) {
    std::vector<std::string> arguments = {"--nproc-per-node", "2"};
    if (std::find(options.begin(), options.end(), "--simulate-nodes") == options.end()) {
      arguments.insert(arguments.end(), {"--simulate-nodes", "2"});
    }
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"sh", "-c", script});
    job_ = std::make_unique<DlaunchProcess>(arguments);
    for (int rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(job_->WaitForOutput("[" + std::to_string(rank) + "] up")) << job_->err();
    }
    const std::string environment = ReadProcessEnvironment(job_->RankProcess(0));
    const size_t at = environment.find(std::string(1, '\0') + "COHORT_JOB_ID=") + 1;
    ASSERT_NE(at, 0u);
    id_ = std::string(environment.c_str() + at + std::strlen("COHORT_JOB_ID="));
  }

  std::unique_ptr<DlaunchProcess> job_;
  std::string id_;
};

}  // namespace cohort::launcher
