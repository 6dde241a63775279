#include "tools/plan/predicted_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "tests/support/read_trace.h"

namespace cohort::tools {
namespace {

using launcher::ReadSlice;
using launcher::ReadTrace;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PredictedCallTest : public ::testing::Test {
 protected:
  PredictedCallTest() {
    std::string name = (std::filesystem::temp_directory_path() / "predicted_call_test.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/predicted.pftrace";
  }
  ~PredictedCallTest() override { std::filesystem::remove_all(folder_); }

  // Writes the trace; returns what was simulated.
  comm::SimulationReport Trace(const char* algorithm, int64_t bytes, const std::string& network) const {
    const auto parsed = comm::Network::Parse(network);
    const comm::AlgorithmInfo* const info = comm::FindAlgorithm(comm::CollectiveKind::kAllReduce, algorithm);
    auto call = PredictedCall::Open(path_, *info, bytes, *parsed);
    EXPECT_TRUE(call.ok()) << call.status();
    comm::SimulateOptions options;
    options.on_step = [&call](const comm::SimulatedStep& step) { call->Add(step); };
    const auto report = comm::Simulate(*info, bytes, *parsed, options);
    EXPECT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(call->Write().ok());
    return *report;
  }

  std::string folder_, path_;
};

TEST_F(PredictedCallTest, EveryRankHasItsCallAndItsSteps) {
  for (const std::string network : {"flat:nodes=4", "host:ranks-per-node=4"}) {
    for (const char* const algorithm : {"ring", "flat", "direct"}) {
      SCOPED_TRACE(network + " " + algorithm);
      std::filesystem::remove(path_);
      const comm::SimulationReport report = Trace(algorithm, 1 << 20, network);
      const ReadTrace trace = ReadTrace::Of(path_, ReadTrace::Slices::kNested);
      EXPECT_THAT(trace.problems, IsEmpty());
      uint64_t longest = 0;
      std::set<std::string> tracks;
      std::multiset<uint64_t> begun, ended;
      for (const ReadSlice& slice : trace.slices) {
        tracks.insert(slice.track);
        begun.insert(slice.causes.begin(), slice.causes.end());
        ended.insert(slice.waited.begin(), slice.waited.end());
        if (slice.name == "all_reduce") longest = std::max(longest, slice.end_ns - slice.start_ns);
        const bool has_arrow = slice.name == "recv" && slice.start_ns != slice.end_ns;
        EXPECT_EQ(slice.waited.size(), has_arrow ? 1u : 0u) << slice.name;
      }
      EXPECT_EQ(tracks.size(), 4u);
      EXPECT_EQ(longest, static_cast<uint64_t>(report.microseconds * 1e3));
      EXPECT_EQ(begun, ended);
      EXPECT_FALSE(begun.empty());
      EXPECT_EQ(std::set(begun.begin(), begun.end()).size(), begun.size());
    }
  }
}

TEST_F(PredictedCallTest, MoreRanksThanAPageShowsAreRefused) {
  const auto network = comm::Network::Parse("flat:nodes=1000000");
  const auto call =
      PredictedCall::Open(path_, *comm::FindAlgorithm(comm::CollectiveKind::kAllReduce, "ring"), 8, *network);
  EXPECT_THAT(call.status().message(), HasSubstr("a trace has at most 16384 ranks, and the network 1000000"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace cohort::tools
