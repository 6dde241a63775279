#include "cohort/trainer/autograd/autocast.h"

#include "cohort/trainer/base/torch_compat.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr std::array<c10::DeviceType, 2> kDevices = {c10::kCPU, c10::kCUDA};

void Enter() { at::autocast::increment_nesting(); }

void Leave() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

void Set(const AutocastState& state) {
  for (size_t i = 0; i < kDevices.size(); ++i) {
    compat::SetAutocast(kDevices[i], state.devices[i].enabled, state.devices[i].dtype);
  }
  at::autocast::set_autocast_cache_enabled(state.cache);
}

}  // namespace

Autocast::Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype, bool enabled, bool cache_enabled)
    : device_(device) {
  TORCH_CHECK(device == c10::kCPU || device == c10::kCUDA, "autocast: can't autocast on ", device,
              "; it does on CPU and CUDA");
  const c10::ScalarType type = dtype.value_or(device == c10::kCPU ? c10::kBFloat16 : c10::kHalf);
  TORCH_CHECK(!enabled || type == c10::kBFloat16 || (type == c10::kHalf && device == c10::kCUDA),
              "autocast: can't autocast to ", type, " on ", device, "; bfloat16 can be used",
              device == c10::kCUDA ? ", and float16" : "");
  enabled_before_ = compat::AutocastEnabled(device);
  dtype_before_ = compat::AutocastType(device);
  cache_before_ = at::autocast::is_autocast_cache_enabled();
  compat::SetAutocast(device, enabled, enabled ? type : dtype_before_);
  at::autocast::set_autocast_cache_enabled(cache_enabled);
  Enter();
}

Autocast::~Autocast() {
  Leave();
  compat::SetAutocast(device_, enabled_before_, dtype_before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
}

AutocastState CurrentAutocast() {
  AutocastState state;
  for (size_t i = 0; i < kDevices.size(); ++i) {
    state.devices[i] = {.enabled = compat::AutocastEnabled(kDevices[i]), .dtype = compat::AutocastType(kDevices[i])};
  }
  state.cache = at::autocast::is_autocast_cache_enabled();
  return state;
}

AutocastStateGuard::AutocastStateGuard(const AutocastState& state) : before_(CurrentAutocast()) {
  Set(state);
  Enter();
}

AutocastStateGuard::~AutocastStateGuard() {
  Leave();
  Set(before_);
}

}  // namespace cohort::trainer
