// Collectives on device memory: behind the kernels that were queued before them, beside those that come after.
//
//   caller's current stream   ── gradients ──┬── more gradients ──────┬── use the result
//                                     event  │                 event  │
//   the device's own stream                  └── all-reduce ──────────┘
//
// Each device has one stream for collectives of all communicators, which comm runs one after the other anyway.
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
  // The cudaStream_t behind a stream; none: this libtorch does not tell. That of a device's default stream is null.
  using HandleOf = std::optional<void*> (*)(const c10::Stream& stream);
  // `devices` must outlive this.
  DeviceStreams(const c10::impl::DeviceGuardImplInterface& devices, HandleOf handle_of)
      : devices_(devices), handle_of_(handle_of) {}

  // For CallOptions::stream: the device's stream for collectives, which from now on comes after all that has been
  // queued on the calling thread's current stream. A stream of torch's pool, or, where its handle is not told, the
  // default one: then collectives do not run beside kernels there.
  void* ForCall(c10::Device device);
  // The calling thread's current stream comes after the collectives that have been called on the device.
  void Follow(c10::Device device);
  c10::Stream Current(c10::Device device) const { return devices_.getStream(device); }
  // What is queued on `second` from now on comes after what is on `first`.
  void Order(const c10::Stream& first, const c10::Stream& second) const;
  // The memory of `tensor` is not given to others before what is on the current stream is through.
  void UsedOnCurrent(const at::Tensor& tensor) const;

 private:
  c10::Stream OwnOf(c10::Device device);

  const c10::impl::DeviceGuardImplInterface& devices_;
  const HandleOf handle_of_;
  runtime::Mutex mutex_;
  std::map<c10::DeviceIndex, c10::Stream> own_ COHORT_GUARDED_BY(mutex_);
};

// Those of CUDA; null in a libtorch without it.
DeviceStreams* CudaStreams();

// The result of `work` in `tensor`, for what is queued from now on. On the host this waits, and `work` is done. On a
// device the current stream waits, not the host: OK says only that the operation has not failed yet, its tensors must
// stay until work.Wait() is over, and its status is to be asked for then.
absl::Status AwaitOnStream(runtime::Work& work, const at::Tensor& tensor);

// The streams that write one tensor in turn, as autograd's do whose forward pass had several: each comes after the one
// before. On the host nothing.
class StreamChain {
 public:
  // The current stream is the next to use `tensor`.
  void Enter(const at::Tensor& tensor);

 private:
  std::optional<c10::Stream> last_;
};

}  // namespace cohort::trainer
