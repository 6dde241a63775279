// Vectors in device memory, for tests in processes of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "cohort/comm/cuda/cuda_api.h"

namespace cohort::comm {

class DeviceVector {
 public:
  DeviceVector(const cuda::CudaApi& api, const std::vector<int32_t>& values) : api_(api), count_(values.size()) {
    if (api_.cudaMalloc(&data_, count_ * sizeof(int32_t)) != cudaSuccess) data_ = nullptr;
    Copy(data_, values.data(), cudaMemcpyHostToDevice);
  }
  ~DeviceVector() { api_.cudaFree(data_); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;

  void* data() { return data_; }
  std::vector<int32_t> values() {
    std::vector<int32_t> result(count_);
    Copy(result.data(), data_, cudaMemcpyDeviceToHost);
    return result;
  }

 private:
  void Copy(void* to, const void* from, cudaMemcpyKind kind) {
    api_.cudaMemcpyAsync(to, from, count_ * sizeof(int32_t), kind, nullptr);
    api_.cudaStreamSynchronize(nullptr);
  }
  const cuda::CudaApi& api_;
  const size_t count_;
  void* data_ = nullptr;
};

}  // namespace cohort::comm
