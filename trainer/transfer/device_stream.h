// Collectives on device memory run behind the kernels queued before them, and beside the kernels that come after.
//
//   caller's current stream   ── gradients ──┬── more gradients ──────┬── use the result
//                                     event  │                 event  │
//   the device's own stream                  └── all-reduce ──────────┘
//
// Each device has one stream for collectives of all communicators. comm runs these one after the other anyway.
#pragma once

#include <map>
#include <optional>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "c10/core/Device.h"
#include "c10/core/Stream.h"
#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/engine/work.h"

namespace cohort::trainer {

// The streams for collectives of the devices of one type. Thread-safe.
class DeviceStreams {
 public:
  // Returns the cudaStream_t behind a stream; that of a device's default stream is null. No value: this libtorch does
  // not tell.
  using HandleOf = std::optional<void*> (*)(const c10::Stream& stream);
  // `devices` must outlive this.
  DeviceStreams(const c10::impl::DeviceGuardImplInterface& devices, HandleOf handle_of)
      : devices_(devices), handle_of_(handle_of) {}

  // Returns the device's stream for collectives, for CallOptions::stream. From now on it comes after all work queued on
  // the calling thread's current stream. It is a stream of torch's pool. If its handle is not known it is the default
  // stream, and collectives do not run beside kernels.
  void* ForCall(c10::Device device);
  // Makes the calling thread's current stream come after the collectives that have been called on the device.
  void Follow(c10::Device device);
  c10::Stream Current(c10::Device device) const { return devices_.getStream(device); }
  // Makes work queued on `second` from now on come after the work on `first`.
  void Order(const c10::Stream& first, const c10::Stream& second) const;
  // Keeps the memory of `tensor` from other users until the work on the current stream is through.
  void UsedOnCurrent(const at::Tensor& tensor) const;

 private:
  c10::Stream OwnOf(c10::Device device);

  const c10::impl::DeviceGuardImplInterface& devices_;
  const HandleOf handle_of_;
  runtime::Mutex mutex_;
  std::map<c10::DeviceIndex, c10::Stream> own_ COHORT_GUARDED_BY(mutex_);
};

// Returns the streams of CUDA, or null in a libtorch without it.
DeviceStreams* CudaStreams();

// Makes the result of `work` in `tensor` available to all work queued from now on. On the host this blocks, and `work`
// is done. On a device the current stream waits, not the host. OK then only says that the operation has not failed yet.
// Its tensors must stay until work.Wait() returns, whose status is the result.
absl::Status AwaitOnStream(runtime::Work& work, const at::Tensor& tensor);

// Orders the streams that write one tensor in turn: each comes after the one before. Autograd uses several if the
// forward pass had several. On the host it does nothing.
class StreamChain {
 public:
  // Makes the current stream the next to use `tensor`.
  void Enter(const at::Tensor& tensor);

 private:
  std::optional<c10::Stream> last_;
};

}  // namespace cohort::trainer
