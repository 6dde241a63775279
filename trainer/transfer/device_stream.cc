#include "cohort/trainer/transfer/device_stream.h"

#include "cohort/trainer/base/torch_compat.h"

namespace cohort::trainer {

void DeviceStreams::Order(const c10::Stream& first, const c10::Stream& second) const {
  if (first == second) return;
  struct Event {
    ~Event() { devices.destroyEvent(event, device); }
    const c10::impl::DeviceGuardImplInterface& devices;
    const c10::DeviceIndex device;
    void* event = nullptr;
  };
  Event recorded{devices_, first.device_index()};
  devices_.record(&recorded.event, first, recorded.device, c10::EventFlag::PYTORCH_DEFAULT);
  devices_.block(recorded.event, second);
}

c10::Stream DeviceStreams::OwnOf(c10::Device device) {
  const runtime::MutexLock lock(mutex_);
  const auto known = own_.find(device.index());
  if (known != own_.end()) return known->second;
  c10::Stream own = devices_.getStreamFromGlobalPool(device);
  if (!handle_of_(own).has_value()) own = devices_.getDefaultStream(device);
  return own_.emplace(device.index(), own).first->second;
}

void* DeviceStreams::ForCall(c10::Device device) {
  const c10::Stream own = OwnOf(device);
  Order(devices_.getStream(device), own);
  return handle_of_(own).value_or(nullptr);
}

void DeviceStreams::Follow(c10::Device device) { Order(OwnOf(device), devices_.getStream(device)); }

void DeviceStreams::UsedOnCurrent(const at::Tensor& tensor) const {
  if (tensor.storage().nbytes() == 0) return;
  devices_.recordDataPtrOnStream(tensor.storage().data_ptr(), devices_.getStream(tensor.device()));
}

DeviceStreams* CudaStreams() {
  static DeviceStreams* const streams =  // for ever: threads may outlive main()
      c10::impl::hasDeviceGuardImpl(c10::kCUDA)
          ? new DeviceStreams(*c10::impl::getDeviceGuardImpl(c10::kCUDA), compat::StreamHandle)
          : nullptr;
  return streams;
}

absl::Status AwaitOnStream(runtime::Work& work, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return work.Wait();
  CudaStreams()->UsedOnCurrent(tensor);  // also by what follows an operation that is done
  if (work.Done()) return work.Wait();
  CudaStreams()->Follow(tensor.device());
  return absl::OkStatus();
}

void StreamChain::Enter(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return;
  const c10::Stream now = CudaStreams()->Current(tensor.device());
  if (last_ == now) return;
  if (last_.has_value()) CudaStreams()->Order(*last_, now);
  CudaStreams()->UsedOnCurrent(tensor);
  last_ = now;
}

}  // namespace cohort::trainer
