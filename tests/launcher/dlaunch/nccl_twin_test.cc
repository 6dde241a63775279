// A program over NCCL and its twin over Cohort: what goes wrong is explained in the same way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/running_job.h"

namespace cohort::launcher {
namespace {

using nlohmann::json;
using std::string;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr char kNccl[] = "5", kCohort[] = "cohort";  // arguments of nccl_ranks

struct Explained {
  int status = 0;
  json why;     // of the trace
  json report;  // of the job
  string errors;
};

class NcclTwin : public RunningJob {
 protected:
  string Script(const string& scenario, const string& way, int seconds) const {
    return string("exec ") + COHORT_NCCL_RANKS + " " + scenario + " " + folder_.path() + " " + way + " " +
           std::to_string(seconds);
  }
  static json Why(const std::vector<string>& words) {
    std::vector<string> command = {"why", "--json"};
    command.insert(command.end(), words.begin(), words.end());
    DlaunchProcess why(command);
    EXPECT_EQ(why.Wait(), 0) << why.err();
    return json::parse(why.out(), nullptr, /*allow_exceptions=*/false);
  }
  void Begin(const string& scenario, const string& way, int seconds) {
    for (const string name : {"world", "over"}) std::filesystem::remove(folder_.path() + "/" + name);
    Start(Script(scenario, way, seconds), {"--trace", trace_, "--log-dir", logs_});
  }
  // Waits for the end of the job that Begin has started.
  Explained Explain() {
    Explained explained;
    explained.status = job_->Wait();
    explained.errors = job_->err();
    explained.why = Why({trace_});
    std::ifstream file(logs_ + "/report.json");
    explained.report = json::parse(file, nullptr, /*allow_exceptions=*/false);
    std::filesystem::remove_all(logs_);
    std::filesystem::remove(trace_);
    return explained;
  }
  static int CauseOf(const Explained& explained) {
    EXPECT_TRUE(explained.report.contains("cause")) << explained.report.dump(1) << explained.errors;
    return explained.report.contains("cause") ? explained.report["cause"].value("rank", -1) : -1;
  }
  static string TextOf(const Explained& explained) {
    return explained.report.contains("cause") ? explained.report["cause"].value("text", "") : "";
  }
  // Both name the same rank, reason and place.
  static void ExpectAlike(const json& nccl, const json& cohort) {
    const string both = nccl.dump(1) + "\n" + cohort.dump(1);
    EXPECT_EQ(nccl["verdict"], cohort["verdict"]) << both;
    ASSERT_TRUE(nccl.contains("culprit") && cohort.contains("culprit")) << both;
    for (const char* const key : {"ranks", "nodes", "in_call", "waiting"}) {
      EXPECT_EQ(nccl["culprit"][key], cohort["culprit"][key]) << key << "\n" << both;
    }
    EXPECT_EQ(nccl["culprit"]["reason"]["activity"], cohort["culprit"]["reason"]["activity"]) << both;
    // NCCL tells neither the operation of a reduction nor the line.
    EXPECT_EQ(nccl["culprit"]["call"], "all_reduce(float32, 256)") << both;
    EXPECT_EQ(cohort["culprit"]["call"], "all_reduce(sum, float32, 256)") << both;
  }

  TemporaryFolder folder_;
  const string trace_ = folder_.path() + "/job.pftrace";
  const string logs_ = folder_.path() + "/logs";
};

TEST_F(NcclTwin, ASlowRank) {
  std::vector<Explained> both;
  for (const char* const way : {kNccl, kCohort}) {
    Begin("slow", way, 60);
    both.push_back(Explain());
    EXPECT_EQ(both.back().status, 0) << both.back().errors;
    EXPECT_FALSE(both.back().report.contains("cause")) << "a job that ends well has none";
    EXPECT_EQ(both.back().why["culprit"]["ranks"], json::array({3})) << both.back().why.dump(1);
    EXPECT_EQ(both.back().why["culprit"]["reason"]["activity"], "sleeps");
  }
  ExpectAlike(both[0].why, both[1].why);
}

TEST_F(NcclTwin, ARankThatHangs) {
  std::vector<json> running;
  std::vector<Explained> both;
  for (const char* const way : {kNccl, kCohort}) {
    Begin("hang", way, 20);
    json now;
    EXPECT_TRUE(job_->WaitUntil([&] {  // a busy machine lets the others come to that call late
      DlaunchProcess why({"why", "--json", "--for", "1s", id_});
      if (why.Wait() != 0) return false;
      now = json::parse(why.out(), nullptr, /*allow_exceptions=*/false);
      return now.contains("culprit") && now["verdict"] == "waits now" && now["culprit"]["waiting"].size() == 3;
    })) << now.dump(1);
    running.push_back(now);
    both.push_back(Explain());
    EXPECT_EQ(both.back().status, 1) << both.back().errors;
    EXPECT_EQ(CauseOf(both.back()), 1);
    EXPECT_THAT(TextOf(both.back()), HasSubstr("rank 1 never called all_reduce("));
    EXPECT_THAT(TextOf(both.back()), HasSubstr(" (operation #4), which ranks 0, 2 and 3 called"));
  }
  EXPECT_EQ(running[0]["culprit"]["ranks"], json::array({1})) << running[0].dump(1);
  EXPECT_EQ(running[0]["culprit"]["waiting"], json::array({0, 2, 3})) << running[0].dump(1);
  ExpectAlike(running[0], running[1]);
}

TEST_F(NcclTwin, CallsThatDoNotMatch) {
  std::vector<Explained> both;
  for (const char* const way : {kNccl, kCohort}) {
    Begin("mismatch", way, 20);
    if (way == kNccl) {  // nobody can end a call of NCCL
      EXPECT_TRUE(job_->WaitUntil([&] { return job_->err().find("calls do not match") != string::npos; }))
          << job_->err();
      std::ofstream(folder_.path() + "/over") << "x";
    }
    both.push_back(Explain());
    EXPECT_EQ(both.back().status, 1) << both.back().errors;
    // Over Cohort two ranks that meet may see it first: then there is no majority.
    EXPECT_THAT(CauseOf(both.back()), AnyOf(2, way == kNccl ? 2 : -1)) << TextOf(both.back());
    EXPECT_THAT(TextOf(both.back()), HasSubstr("calls do not match"));
    EXPECT_THAT(TextOf(both.back()), HasSubstr("rank 2 called broadcast(float32, 256, root 0)"));
  }
}

TEST_F(NcclTwin, ARankThatEndsBeforeItsCall) {
  std::vector<Explained> both;
  for (const char* const way : {kNccl, kCohort}) {
    Begin("leave", way, 20);
    if (way == kNccl) {
      EXPECT_TRUE(job_->WaitUntil([&] { return job_->err().find("never called all_reduce") != string::npos; }))
          << job_->err();
      std::ofstream(folder_.path() + "/over") << "x";
    }
    both.push_back(Explain());
    EXPECT_EQ(both.back().status, 1) << both.back().errors;
    EXPECT_EQ(CauseOf(both.back()), 1) << TextOf(both.back());
    EXPECT_THAT(TextOf(both.back()), HasSubstr("rank 1 "));
    EXPECT_THAT(TextOf(both.back()), HasSubstr("exited with code 0"));
  }
}

// A watchdog that aborts the communicator, as PyTorch's does, leaves no call that runs.
TEST_F(NcclTwin, ARankThatHangsWhereTheOthersAbortTheCommunicator) {
  Begin("abort", kNccl, 15);
  const Explained explained = Explain();
  EXPECT_EQ(explained.status, 1) << explained.errors;
  EXPECT_EQ(CauseOf(explained), 1) << TextOf(explained);
  EXPECT_THAT(TextOf(explained),
              HasSubstr("rank 1 never called all_reduce(float32, 256) (operation #4), which ranks 0, "
                        "2 and 3 called"));
}

}  // namespace
}  // namespace cohort::launcher
