// Checks (COHORT_CHECK) of calls on CUDA memory, of communicators as users have them. The ranks are processes, which
// the fake NCCL does not join: their calls go through host memory. comm_nccl_search_test has calls of NCCL's.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {
namespace {

using testing::ProcessRank;
using testing::RunProcesses;
using Values = std::vector<float>;

class NcclCheckedTest : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("COHORT_CHECK"); }
  static void Run(const char* checks, int ranks, const std::function<std::string(ProcessRank&)>& program) {
    setenv("COHORT_CHECK", checks, 1);
    const auto results = RunProcesses({.ranks = ranks, .deadline = std::chrono::seconds(60)}, [&](ProcessRank& self) {
      setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
      setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
      return program(self);
    });
    for (const auto& result : results) EXPECT_EQ(result.text, "");
  }
};

// The fake's device memory is host memory.
Buffer OnDevice(Values& values) {
  return Buffer(values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32, MemoryKind::kCuda, 0);
}

CallOptions Staged() {
  CallOptions options;
  options.algorithm = "staged";
  options.timeout = std::chrono::seconds(20);
  return options;
}

// "" or what was wrong with the error that ends the group.
std::string Expect(Communicator& group, absl::Status status, const std::vector<std::string>& words) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int32_t one = 1;
  while (status.ok() && std::chrono::steady_clock::now() < deadline) {
    status = group.AllReduce({&one, 1}, {&one, 1}, ReduceOp::kMax).Wait(std::chrono::seconds(20));
  }
  if (!absl::IsDataLoss(status)) return "not kDataLoss: " + status.ToString();
  for (const std::string& word : words) {
    if (std::string(status.message()).find(word) == std::string::npos)
      return word + " is missing: " + status.ToString();
  }
  return "";
}

TEST_F(NcclCheckedTest, TheFirstNaNIsNamedByRankCallAndElement) {
  Run("nan", 3, [](ProcessRank& self) -> std::string {
    Values in(3000, 1), out(9000);
    for (int step = 0; step < 2; ++step) {
      const absl::Status right = self.world->AllGather(OnDevice(in), OnDevice(out), Staged()).Wait();
      if (!right.ok()) return "a right call: " + right.ToString();
    }
    if (!self.meet("right", 3)) return "the others are not there";  // a slow rank gets the error in a right call
    if (self.rank == 1) in[2041] = NAN;
    if (self.rank == 1) in[2995] = -INFINITY;
    const absl::Status status =
        self.world->AllGather(OnDevice(in), OnDevice(out), Staged()).Wait(std::chrono::seconds(20));
    return Expect(*self.world, status,
                  {"rank 1's input of all_gather(float32, 3000) at checked_test.cc:",
                   " holds NaN at element 2041 (1 NaN, 1 inf)"});
  });
}

TEST_F(NcclCheckedTest, BlocksAreSearchedWhereTheyLie) {
  Run("nan", 2, [](ProcessRank& self) -> std::string {
    Values in(40, 1), out(10);
    in[3] = NAN;  // in no block
    if (self.rank == 0) in[25] = INFINITY;
    const std::vector<int64_t> counts = {10, 10}, places = {5, 20};
    const absl::Status status = self.world
                                    ->ReduceScatterV(OnDevice(in), {.counts = counts, .displacements = places},
                                                     OnDevice(out), ReduceOp::kSum, Staged())
                                    .Wait(std::chrono::seconds(20));
    return Expect(*self.world, status,
                  {"rank 0's input of reduce_scatter_v(", "holds infinity at element 25 (0 NaN, 1 inf)"});
  });
}

TEST_F(NcclCheckedTest, IntegersAreNotLookedAt) {
  Run("nan", 2, [](ProcessRank& self) -> std::string {
    Values values(5000, 1);
    const absl::Status sum = self.world->AllReduce(OnDevice(values), OnDevice(values), ReduceOp::kSum, Staged()).Wait();
    if (!sum.ok()) return sum.ToString();
    if (values[4999] != 2) return "a wrong sum";
    values[7] = NAN;
    const Buffer bits(values.data(), 5000, DataType::kInt32, MemoryKind::kCuda, 0);
    const absl::Status integers = self.world->AllReduce(bits, bits, ReduceOp::kMax, Staged()).Wait();
    return integers.ok() ? "" : integers.ToString();
  });
}

TEST_F(NcclCheckedTest, ResultsThatNobodyCanCompareAreRefused) {
  Run("results", 2, [](ProcessRank& self) -> std::string {
    Values values(10, 1), part(5);
    const absl::Status sum = self.world->AllReduce(OnDevice(values), OnDevice(values), ReduceOp::kSum, Staged()).Wait();
    if (!absl::IsUnimplemented(sum) || std::string(sum.message()).find("--check results") == std::string::npos) {
      return "all_reduce: " + sum.ToString();
    }
    // Ranks get different parts: there is nothing to compare, in any memory.
    const absl::Status parts =
        self.world->ReduceScatter(OnDevice(values), OnDevice(part), ReduceOp::kSum, Staged()).Wait();
    if (!parts.ok()) return "reduce_scatter: " + parts.ToString();
    int32_t one = 1;
    const absl::Status host = self.world->AllReduce({&one, 1}, {&one, 1}, ReduceOp::kSum).Wait();
    return host.ok() && one == 2 ? "" : "host memory: " + host.ToString();
  });
}

}  // namespace
}  // namespace cohort::comm
