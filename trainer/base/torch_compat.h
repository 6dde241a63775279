// The one place where libtorch 1.13 and 2.x are told apart: what was renamed or moved, under one name.
#pragma once

#include <array>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "ATen/autocast_mode.h"
#include "ATen/core/Tensor.h"
#include "c10/core/DeviceType.h"
#include "c10/core/ScalarType.h"
#include "c10/core/Stream.h"
#include "torch/version.h"

namespace cohort::trainer::compat {

// Autocasting of the calling thread, for one kind of device: 2.4 replaced a function for each kind by one for all.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
inline bool AutocastEnabled(c10::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
inline c10::ScalarType AutocastType(c10::DeviceType device) { return at::autocast::get_autocast_dtype(device); }
inline void SetAutocast(c10::DeviceType device, bool enabled, c10::ScalarType dtype) {
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
}
#else
inline bool AutocastEnabled(c10::DeviceType device) {
  return device == c10::kCPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
}
inline c10::ScalarType AutocastType(c10::DeviceType device) {
  return device == c10::kCPU ? at::autocast::get_autocast_cpu_dtype() : at::autocast::get_autocast_gpu_dtype();
}
inline void SetAutocast(c10::DeviceType device, bool enabled, c10::ScalarType dtype) {
  if (device == c10::kCPU) {
    at::autocast::set_cpu_enabled(enabled);
    at::autocast::set_autocast_cpu_dtype(dtype);
  } else {
    at::autocast::set_enabled(enabled);
    at::autocast::set_autocast_gpu_dtype(dtype);
  }
}
#endif

// The key of a parameter's state in Optimizer::state(): 2.x took the address where 1.13 has its text.
template <typename States>
typename States::key_type OptimizerStateKey(const States&, const at::Tensor& parameter) {
  if constexpr (std::is_same_v<typename States::key_type, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}

// The cudaStream_t behind a stream of CUDA; none where libtorch does not tell, as 1.13.
template <typename Stream>
std::optional<void*> HandleOf(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    return std::nullopt;
  }
}
inline std::optional<void*> StreamHandle(const c10::Stream& stream) { return HandleOf(stream); }

// Takes away the hooks of the tensors whose gradients come to a node, after a pass that captured these gradients: 2.x
// captures them behind the hooks, which would count again in the next pass. 1.13 captures them before, and needs them.
template <typename Node>
void DropTensorHooks(Node& node) {
  if constexpr (requires { node.tensor_pre_hooks().clear(); }) node.tensor_pre_hooks().clear();
}

// Element types that 2.1 and 2.3 added, by the names that safetensors has for them.
using NamedType = std::pair<c10::ScalarType, const char*>;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
inline constexpr std::array<NamedType, 5> kNewerTypes = {{{c10::ScalarType::Float8_e4m3fn, "F8_E4M3"},
                                                          {c10::ScalarType::Float8_e5m2, "F8_E5M2"},
                                                          {c10::ScalarType::UInt16, "U16"},
                                                          {c10::ScalarType::UInt32, "U32"},
                                                          {c10::ScalarType::UInt64, "U64"}}};
#elif TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1
inline constexpr std::array<NamedType, 2> kNewerTypes = {
    {{c10::ScalarType::Float8_e4m3fn, "F8_E4M3"}, {c10::ScalarType::Float8_e5m2, "F8_E5M2"}}};
#else
inline constexpr std::array<NamedType, 0> kNewerTypes = {};
#endif

}  // namespace cohort::trainer::compat
