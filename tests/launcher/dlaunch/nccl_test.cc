// Programs that use NCCL without Cohort: their calls are shown as ours are, by NCCL's profiler plug-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/running_job.h"
#include "tests/support/read_trace.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Nccl : public RunningJob {
 protected:
  string Script(const string& scenario, const string& version = "") const {
    return string("exec ") + COHORT_NCCL_RANKS + " " + scenario + " " + folder_.path() + " " + version;
  }
  std::vector<string> Command(const string& script, const std::vector<string>& options = {}) const {
    std::vector<string> command = {"--simulate-nodes", "2", "--nproc-per-node", "2"};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"sh", "-c", script});
    return command;
  }
  // Ends what waits in a call.
  void EndWaits() const { std::ofstream(folder_.path() + "/over") << "x"; }
  // Looks at the job again and again until its page has this text.
  bool TopShows(const string& text) {
    return job_->WaitUntil([&] {
      DlaunchProcess top({"top", id_});
      return top.Wait() == 0 && top.out().find(text) != string::npos;
    });
  }

  TemporaryFolder folder_;
  const string trace_ = folder_.path() + "/job.pftrace";
};

TEST_F(Nccl, TheTraceHasEveryCallWhateverTheVersion) {
  for (const string version : {"3", "4", "5", "6"}) {
    for (const string name : {"world", "half0", "half1"}) std::filesystem::remove(folder_.path() + "/" + name);
    DlaunchProcess job(Command(Script("calls", version), {"--trace", trace_}));
    ASSERT_EQ(job.Wait(), 0) << job.err();
    const ReadTrace trace = ReadTrace::Of(trace_);
    EXPECT_THAT(trace.problems, IsEmpty());
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(job.out(), HasSubstr("[" + std::to_string(rank) + "] calls 204"));
      EXPECT_EQ(trace.CountOf("rank " + std::to_string(rank)), 204u) << version << "\n" << job.err();
    }
    const auto count = [&trace](const string& call) {
      return std::count_if(trace.slices.begin(), trace.slices.end(),
                           [&](const ReadSlice& slice) { return slice.arguments.at("call") == call; });
    };
    EXPECT_EQ(count("all_reduce(float32, 256)"), 4 * 200);
    EXPECT_EQ(count("broadcast(float32, 256, root 0)"), 4);
    EXPECT_EQ(count("reduce_scatter(float32, 256)"), 4);
    EXPECT_EQ(count("send(float32, 256, to 1)"), 1);
    EXPECT_EQ(count("recv(float32, 256, from 1)"), 1);
    std::filesystem::remove(trace_);
  }
}

TEST_F(Nccl, ARankThatHangsIsShownAndNamedInTheReport) {
  Start(Script("hang"));
  EXPECT_TRUE(TopShows("3 ranks wait for rank 1, after all_reduce #3")) << job_->err();
  const string blackbox = "\"" + ProgramFolder() + "/blackbox\" --job " + id_;
  FILE* const page = ::popen(blackbox.c_str(), "r");
  ASSERT_NE(page, nullptr);
  string table;
  for (char line[512]; std::fgets(line, sizeof line, page) != nullptr;) table += line;
  EXPECT_EQ(::pclose(page), 0);
  EXPECT_THAT(table, AllOf(HasSubstr("recorded"), HasSubstr("all_reduce"), HasSubstr("float32")));
  EXPECT_EQ(job_->Wait(), 1);  // the watchdog
  EXPECT_THAT(job_->err(), HasSubstr("rank 1 never called all_reduce(float32, 256) (operation #4), which ranks "
                                     "0, 2 and 3 called: rank 1 (node0) is after all_reduce #3"));
  EXPECT_THAT(job_->err(), HasSubstr("; waited for "));
}

TEST_F(Nccl, CallsThatDoNotMatchAreToldAtOnceAndInTheReport) {
  Start(Script("mismatch"));
  ASSERT_TRUE(job_->WaitUntil([&] { return job_->err().find("calls do not match") != string::npos; })) << job_->err();
  EXPECT_THAT(job_->err(), AllOf(HasSubstr("rank 2 called broadcast(float32, 256, root 0)"),
                                 HasSubstr("called all_reduce(float32, 256)")));
  for (int rank = 0; rank < 4; ++rank) EXPECT_NE(job_->RankProcess(rank), 0) << "the job goes on";
  const size_t told = job_->err().size();
  EndWaits();
  EXPECT_EQ(job_->Wait(), 1);
  EXPECT_THAT(job_->err().substr(told), HasSubstr("calls do not match"));
}

TEST_F(Nccl, ASlowRankIsNamedByTopAndTrace) {
  Start(Script("slow"), {"--trace", trace_});
  EXPECT_TRUE(TopShows("3 ranks wait for rank 3")) << job_->err();
  EXPECT_EQ(job_->Wait(), 0) << job_->err();
  EXPECT_THAT(job_->err(), Not(HasSubstr("never called")));
  const ReadTrace trace = ReadTrace::Of(trace_);
  const auto waits_for_three = [](const ReadSlice& slice) {
    return !slice.waited.empty() && slice.arguments.at("waited for rank") == "3";
  };
  const auto waits = [](const ReadSlice& slice) { return !slice.waited.empty(); };
  EXPECT_GE(std::count_if(trace.slices.begin(), trace.slices.end(), waits_for_three), 3);
  EXPECT_EQ(std::count_if(trace.slices.begin(), trace.slices.end(), waits),
            std::count_if(trace.slices.begin(), trace.slices.end(), waits_for_three));
}

TEST_F(Nccl, ARankThatEndsWithoutItsCallIsToldAtOnce) {
  Start(Script("leave"), {"--on-failure", "continue"});
  EXPECT_TRUE(job_->WaitUntil([&] { return job_->err().find("never called all_reduce") != string::npos; }))
      << job_->err();
  EXPECT_THAT(job_->err(), HasSubstr("rank 1 (node0) exited with code 0"));
  EndWaits();
  EXPECT_NE(job_->Wait(), 0);
}

TEST_F(Nccl, TheRuntimeOfCohortTakesOverInTheSameProcess) {
  DlaunchProcess job(Command(Script("takeover"), {"--trace", trace_}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  const ReadTrace trace = ReadTrace::Of(trace_);
  EXPECT_THAT(trace.problems, IsEmpty());
  for (int rank = 0; rank < 4; ++rank) {  // NCCL's five, and Cohort's five
    EXPECT_THAT(job.out(), HasSubstr("[" + std::to_string(rank) + "] calls 10"));
    EXPECT_EQ(trace.CountOf("rank " + std::to_string(rank)), 10u) << job.err();
  }
}

TEST_F(Nccl, BesideCohortThePluginAsksForNothing) {
  DlaunchProcess job(Command(Script("beside")));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("[3] mask 0"));
  EXPECT_THAT(job.err(), Not(HasSubstr("cohort:")));
}

TEST_F(Nccl, NothingThatNcclPassesDoesHarm) {
  DlaunchProcess job(Command(Script("chaos")));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(job.out(), HasSubstr("[" + std::to_string(rank) + "] chaos over, memory is bounded"));
  }
}

TEST_F(Nccl, ProgramsAreRecordedOneAfterTheOtherBehindAScript) {
  const string again = string(COHORT_NCCL_RANKS) + " slow " + folder_.path();
  // A program that had joined and ended without goodbye would have its rank killed a second later.
  DlaunchProcess job(Command(again + " 3 && " + again + " 6; sleep 1.5; echo all $?", {"--trace", trace_}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("[0] all 0"));
  EXPECT_EQ(ReadTrace::Of(trace_).CountOf("rank 0"), 12u);
}

TEST_F(Nccl, TheFirstOfSeveralProcessesOfARankIsRecorded) {
  const string calls = string(COHORT_NCCL_RANKS) + " calls " + folder_.path();
  std::filesystem::create_directory(folder_.path() + "/second");
  DlaunchProcess job(Command(calls + " & " + calls + "/second; wait", {"--trace", trace_}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("are not shown")));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ReadTrace::Of(trace_).CountOf("rank " + std::to_string(rank)), 204u);
}

TEST_F(Nccl, ACauseThatNothingIsShownIsOneLine) {
  const string alone = string("COHORT_AGENT=@cohort-nobody ") + COHORT_NCCL_RANKS + " calls " + folder_.path();
  DlaunchProcess job({"-n", "1", "sh", "-c", alone});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("calls "));
  EXPECT_THAT(job.err(),
              HasSubstr("cohort: NCCL's calls in this process are not shown: the agent named in COHORT_AGENT "
                        "does not answer"));
  EXPECT_EQ(job.err().find("cohort:"), job.err().rfind("cohort:")) << job.err();
}

TEST_F(Nccl, TheUsersOwnPluginStays) {
  const string show = "echo plug-in $NCCL_PROFILER_PLUGIN";
  DlaunchProcess own({"-n", "1", "--env", "NCCL_PROFILER_PLUGIN=none", "sh", "-c", show});
  EXPECT_EQ(own.Wait(), 0);
  EXPECT_THAT(own.out(), HasSubstr("plug-in none"));
  DlaunchProcess inherited({"-n", "1", "sh", "-c", show}, {.environment = {"NCCL_PROFILER_PLUGIN=mine"}});
  EXPECT_EQ(inherited.Wait(), 0);
  EXPECT_THAT(inherited.out(), HasSubstr("plug-in mine"));
  DlaunchProcess ours({"-n", "1", "sh", "-c", show});
  EXPECT_EQ(ours.Wait(), 0);
  EXPECT_THAT(ours.out(), HasSubstr("/lib/cohort/libnccl-profiler-cohort.so"));
}

}  // namespace
}  // namespace cohort::launcher
