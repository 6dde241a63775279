// Ranks as processes that share one device, and memory there.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/cuda/device.h"
#include "cohort/comm/types.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {

// Runs `check` in processes that share one device; skips where there is none.
class NcclGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // In a process of its own: a process that has used CUDA must not fork.
    const auto probe = testing::RunProcesses(
        {.ranks = 1}, [](testing::ProcessRank&) { return cuda::DeviceCount().status().ToString(); });
    if (probe[0].text != "OK") GTEST_SKIP() << probe[0].text;
  }
  static void Run(int ranks, const std::function<std::string(testing::ProcessRank&)>& check) {
    const testing::ProcessClusterOptions options = {.ranks = ranks, .deadline = std::chrono::seconds(60)};
    const auto results = testing::RunProcesses(options, [&](testing::ProcessRank& self) {
      // NCCL refuses two ranks on one device unless they seem to be on different hosts; kernels of two processes take
      // turns, so few of them.
      setenv("NCCL_HOSTID", ("rank" + std::to_string(self.rank)).c_str(), 1);
      setenv("NCCL_MAX_CTAS", "2", 1);
      return check(self);
    });
    for (const auto& result : results) EXPECT_EQ(result.text, "") << ranks << " ranks";
  }
};

// Device memory with a copy of some bytes.
class DeviceBytes {
 public:
  DeviceBytes(const cuda::CudaApi& api, const std::vector<char>& bytes) : api_(api), size_(bytes.size()) {
    if (api_.cudaMalloc(&data_, size_ + 1) != cudaSuccess) data_ = nullptr;
    Copy(data_, bytes.data(), cudaMemcpyHostToDevice);
  }
  ~DeviceBytes() { (void)api_.cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  Buffer buffer(DataType dtype) const {
    return Buffer(data_, static_cast<int64_t>(size_ / SizeOf(dtype)), dtype, MemoryKind::kCuda, 0);
  }
  std::vector<char> bytes() const {
    std::vector<char> result(size_);
    Copy(result.data(), data_, cudaMemcpyDeviceToHost);
    return result;
  }

 private:
  void Copy(void* to, const void* from, cudaMemcpyKind kind) const {
    (void)api_.cudaMemcpyAsync(to, from, size_, kind, nullptr);
    (void)api_.cudaStreamSynchronize(nullptr);
  }
  const cuda::CudaApi& api_;
  const size_t size_;
  void* data_ = nullptr;
};

}  // namespace cohort::comm
