// The CUDA device whose memory `--memory cuda` measures: its stream, memory on it, copies. Without CUDA's headers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort::comm::cuda {
struct CudaApi;
}

namespace cohort::collperf {

// Used by the thread that opened it, in which the device stays current. Its memory is never read or written directly.
class CudaDevice {
 public:
  // Opens device `ordinal`; a negative one stands for the local rank's, as nccl-tests number them: `local_rank` modulo
  // the number of devices. `library` names another CUDA runtime than the usual one. kUnimplemented, with cause and
  // remedy, where this build has no CUDA, its runtime is missing, or there is no such device.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const std::string& library, int ordinal, int local_rank);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int ordinal() const { return ordinal_; }
  // A cudaStream_t that does not wait for the default stream.
  void* stream() const { return stream_; }

  // kResourceExhausted where the device has too little memory. At least one byte.
  absl::StatusOr<char*> Allocate(size_t bytes);
  void Free(char* memory);
  // Copies behind what is on the stream, and waits for it.
  absl::Status CopyToDevice(char* to, const char* from, size_t bytes);
  absl::Status CopyToHost(char* to, const char* from, size_t bytes);
  // After a failed call the device may still use its buffers: nothing is freed from here on, since freeing would wait
  // for it. The end of the process frees all.
  void Abandon() { abandoned_ = true; }

 private:
  CudaDevice(const comm::cuda::CudaApi* api, int ordinal) : api_(api), ordinal_(ordinal) {}

  [[maybe_unused]] const comm::cuda::CudaApi* const api_;
  const int ordinal_;
  void* stream_ = nullptr;
  bool abandoned_ = false;
};

}  // namespace cohort::collperf
