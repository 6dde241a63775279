// Checks of inputs and results (COHORT_CHECK) over shared memory and windows; tests/job has the same over nodes.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/batch.h"
#include "cohort/comm/check/named_input.h"
#include "tests/comm/check/trials.h"
#include "tests/support/nightly.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CallOptions;
using comm::ConstBuffer;
using comm::ReduceOp;

std::string Messages(const std::vector<RankResult>& results) {
  std::string text;
  for (const RankResult& result : results) {
    if (!result.text.empty() || !result.exited) text += (result.hung ? "hung " : "") + result.text + "\n";
  }
  return text;
}

class CheckedCallsTest : public ::testing::TestWithParam<int> {
 protected:
  void TearDown() override { unsetenv("COHORT_CHECK"); }

  std::string Run(const char* checks, int ranks, const std::function<std::string(ProcessRank&)>& program) {
    setenv("COHORT_CHECK", checks, 1);
    ProcessClusterOptions options;
    options.ranks = ranks;
    options.deadline = std::chrono::seconds(Nightly() ? 3000 : 120);
    return Messages(RunProcesses(options, program));
  }
};

TEST_P(CheckedCallsTest, ADamagedResultIsNamedByCallAndRank) {
  EXPECT_EQ(Run("results", GetParam(),
                [](ProcessRank& rank) -> std::string {
                  for (int64_t trial = 0; trial < Trials(13, 250); ++trial) {
                    const auto seed = static_cast<uint64_t>(trial * 100 + rank.size);
                    if (std::string wrong = DamageResult(*rank.world, seed); !wrong.empty()) return wrong;
                  }
                  return "";
                }),
            "");
}

TEST_P(CheckedCallsTest, TheFirstNaNIsNamedByRankCallAndElement) {
  EXPECT_EQ(Run("nan", GetParam(),
                [](ProcessRank& rank) -> std::string {
                  for (int64_t trial = 0; trial < Trials(13, 50); ++trial) {
                    const auto seed = static_cast<uint64_t>(trial * 100 + rank.size);
                    if (std::string wrong = PassNonFinite(*rank.world, seed); !wrong.empty()) return wrong;
                  }
                  return "";
                }),
            "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, CheckedCallsTest, ::testing::Values(2, 3, 4, 5));

class ChecksTest : public CheckedCallsTest {};

TEST_F(ChecksTest, AGroupOfOneRankIsCheckedToo) {
  EXPECT_EQ(Run("nan,results", 1,
                [](ProcessRank& rank) -> std::string {
                  float values[4] = {1, 2, INFINITY, NAN};
                  const absl::Status empty =
                      rank.world->AllReduce(ConstBuffer(values, 0), Buffer(values, 0), ReduceOp::kSum).Wait();
                  if (!empty.ok()) return "an empty call: " + empty.ToString();
                  const absl::Status whole =
                      rank.world->AllReduce(ConstBuffer(values, 2), Buffer(values, 2), ReduceOp::kSum).Wait();
                  if (!whole.ok()) return "a right call: " + whole.ToString();
                  const absl::Status status = rank.world->Broadcast(Buffer(values, 4), 0).Wait();
                  const std::string text(status.message());
                  if (!absl::IsDataLoss(status)) return status.ToString();
                  return text.find("rank 0's input of broadcast(float32, 4, root 0) at checked_calls_test.cc:") == 0 &&
                                 text.find(" holds infinity at element 2 (1 NaN, 1 inf)") != std::string::npos
                             ? ""
                             : text;
                }),
            "");
}

struct Gradients final : comm::NamedInput {
  using NamedInput::NamedInput;
  std::string NameOf(size_t element) const override { return "gradient " + std::to_string(element); }
};

TEST_F(ChecksTest, TheNameOfAnInputIsThatOfItsMemoryAlone) {
  EXPECT_EQ(
      Run("nan", 2,
          [](ProcessRank& rank) -> std::string {
            float values[4] = {1, NAN, 3, 4}, others[4] = {1, NAN, 3, 4};
            auto group = rank.world->Duplicate();
            if (!group.ok()) return group.status().ToString();
            rank.meet("groups", 2);
            const Gradients outer(values), inner(others + 1);
            const auto error_of = [](comm::Communicator& in, float* data) {
              return std::string(in.AllReduce(ConstBuffer(data, 4), Buffer(data, 4), ReduceOp::kSum).Wait().message());
            };
            const std::string named = error_of(*rank.world, values), unnamed = error_of(**group, others);
            if (named.find("at element 1, in gradient 1 (1 NaN, 0 inf)") == std::string::npos) return named;
            return unnamed.find("at element 1 (1 NaN, 0 inf)") == std::string::npos ? unnamed : "";
          }),
      "");
}

TEST_F(ChecksTest, SendsAreCheckedAndIntegersAreNot) {
  EXPECT_EQ(Run("nan", 2,
                [](ProcessRank& rank) -> std::string {
                  float value = NAN;
                  uint32_t bits = 0x7fc00000;
                  const absl::Status integers = rank.rank == 0 ? rank.world->Send(ConstBuffer(&bits, 1), 1).Wait()
                                                               : rank.world->Recv(Buffer(&bits, 1), 0).Wait();
                  if (!integers.ok()) return integers.ToString();
                  rank.meet("integers", 2);
                  const absl::Status status = rank.rank == 0 ? rank.world->Send(ConstBuffer(&value, 1), 1).Wait()
                                                             : rank.world->Recv(Buffer(&value, 1), 0).Wait();
                  const std::string text(status.message());
                  return absl::IsDataLoss(status) && text.find("rank 0's input of send(float32, 1, to 1)") == 0
                             ? ""
                             : status.ToString();
                }),
            "");
}

TEST_F(ChecksTest, SmallCallsOfABatchAreCheckedTogether) {
  EXPECT_EQ(Run("nan,results", 2,
                [](ProcessRank& rank) -> std::string {
                  float a[2] = {1, 2}, b[2] = {3, 4};
                  const auto batch = [&] {
                    comm::Batch calls(*rank.world);
                    calls.AllReduce(ConstBuffer(a, 2), Buffer(a, 2), ReduceOp::kMax);
                    calls.AllReduce(ConstBuffer(b, 2), Buffer(b, 2), ReduceOp::kMax);
                    return calls.Submit().Wait();
                  };
                  if (const absl::Status right = batch(); !right.ok()) return right.ToString();
                  rank.meet("right", 2);
                  if (rank.rank == 1) b[1] = NAN;
                  const absl::Status status = batch();
                  const std::string text(status.message());
                  return absl::IsDataLoss(status) &&
                                 text.find("NaN at element 3 of the small calls of a batch together") !=
                                     std::string::npos
                             ? ""
                             : status.ToString();
                }),
            "");
}

TEST_F(ChecksTest, ACallThatNobodyElseMakesEndsAtItsTimeout) {
  EXPECT_EQ(
      Run("nan,results", 2,
          [](ProcessRank& rank) -> std::string {
            float values[2] = {1, 2};
            CallOptions options;
            options.timeout = std::chrono::milliseconds(200);
            absl::Status status;
            if (rank.rank == 0) {
              status = rank.world->AllReduce(ConstBuffer(values, 2), Buffer(values, 2), ReduceOp::kSum, options).Wait();
            }
            rank.meet("expired", 2);
            return rank.rank == 1 || absl::IsDeadlineExceeded(status) ? "" : status.ToString();
          }),
      "");
}

// The environment differs between nodes.
TEST_F(ChecksTest, MembersThatCheckDifferentlyDoNotMatch) {
  if (const std::string why = WhyHostsCannotTalk(); !why.empty()) GTEST_SKIP() << why;
  ProcessClusterOptions options;
  options.ranks = 2;
  options.nodes = 2;
  options.enter_node = [](int node) -> std::string {
    if (node == 1) setenv("COHORT_CHECK", "nan,results", 1);
    return "";
  };
  EXPECT_EQ(Messages(RunProcesses(
                options,
                [](ProcessRank& rank) -> std::string {
                  float values[2] = {1, 2};
                  const absl::Status status =
                      rank.world->AllReduce(ConstBuffer(values, 2), Buffer(values, 2), ReduceOp::kSum).Wait();
                  rank.meet("end", 2);
                  const std::string text(status.message());
                  return absl::IsFailedPrecondition(status) &&
                                 text.find("all_reduce(sum, float32, 2) with --check nan,results") != std::string::npos
                             ? ""
                             : status.ToString();
                })),
            "");
}

}  // namespace
}  // namespace cohort::testing
