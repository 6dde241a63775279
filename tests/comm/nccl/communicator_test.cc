// Communicators over CUDA memory, end to end: one rank over the fake NCCL everywhere, one and two ranks over the real
// one where there is a device.
#include "comm/communicator.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "comm/cuda/device.h"
#include "tests/comm/nccl/device_memory.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {
namespace {

using testing::ProcessRank;
using testing::RunProcesses;
using Values = std::vector<int32_t>;

Buffer Device(DeviceVector& vector, int64_t count) {
  return Buffer(vector.data(), count, DataType::kInt32, MemoryKind::kCuda, 0);
}

// All-reduce, all-gather, broadcast and barrier on device 0.
std::string CheckCollectives(ProcessRank& self, const std::string& library) {
  const absl::StatusOr<const cuda::CudaApi*> api = cuda::LoadCuda(library);
  if (!api.ok()) return api.status().ToString();
  constexpr int64_t kCount = 1000;
  Values mine(kCount), sums(kCount), all;
  for (int64_t i = 0; i < kCount; ++i) mine[i] = static_cast<int32_t>(i * (self.rank + 1));
  for (int rank = 0; rank < self.size; ++rank) {
    for (int64_t i = 0; i < kCount; ++i) {
      all.push_back(static_cast<int32_t>(i * (rank + 1)));
      sums[i] += all.back();
    }
  }
  DeviceVector in(**api, mine), out(**api, Values(kCount)), gathered(**api, Values(all.size()));
  absl::Status status = self.world->AllReduce(Device(in, kCount), Device(out, kCount), ReduceOp::kSum).Wait();
  if (!status.ok()) return "all_reduce: " + status.ToString();
  if (out.values() != sums) return "all_reduce gave wrong values";
  status = self.world->AllGather(Device(in, kCount), Device(gathered, static_cast<int64_t>(all.size()))).Wait();
  if (!status.ok()) return "all_gather: " + status.ToString();
  if (gathered.values() != all) return "all_gather gave wrong values";
  status = self.world->Broadcast(Device(in, kCount), self.size - 1).Wait();
  if (!status.ok()) return "broadcast: " + status.ToString();
  if (in.values() != Values(all.end() - kCount, all.end())) return "broadcast gave wrong values";
  return "";
}

TEST(NcclCommunicatorTest, OneRankOverTheFake) {
  const auto results = RunProcesses({.ranks = 1}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
    setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
    return CheckCollectives(self, COHORT_FAKE_NCCL);
  });
  EXPECT_EQ(results[0].text, "");
  EXPECT_TRUE(results[0].exited);
}

TEST(NcclCommunicatorTest, MissingLibraryRefusesTheCallOnly) {
  const auto results = RunProcesses({.ranks = 1}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_CUDA_LIBRARY", "/nowhere/libcudart.so", 1);
    int32_t value = 3;
    const Buffer buffer(&value, 1, DataType::kInt32, MemoryKind::kCuda, 0);
    const absl::Status refused = self.world->AllReduce(buffer, buffer, ReduceOp::kSum).Wait();
    if (!absl::IsUnimplemented(refused)) return "not refused: " + refused.ToString();
    return self.world->AllReduce({&value, 1}, {&value, 1}, ReduceOp::kSum).Wait().ToString();
  });
  EXPECT_EQ(results[0].text, "OK");
}

TEST(NcclGpuTest, OneAndTwoRanksOnOneDevice) {
  // In a process of its own: a process that has used CUDA must not fork.
  const auto probe = RunProcesses({.ranks = 1}, [](ProcessRank&) { return cuda::DeviceCount().status().ToString(); });
  if (probe[0].text != "OK") GTEST_SKIP() << probe[0].text;
  for (const int ranks : {1, 2}) {
    const auto results = RunProcesses({.ranks = ranks}, [](ProcessRank& self) -> std::string {
      // NCCL refuses two ranks on one device unless they seem to be on different hosts.
      setenv("NCCL_HOSTID", ("rank" + std::to_string(self.rank)).c_str(), 1);
      return CheckCollectives(self, "");
    });
    for (const auto& result : results) EXPECT_EQ(result.text, "") << ranks << " ranks";
  }
}

}  // namespace
}  // namespace cohort::comm
