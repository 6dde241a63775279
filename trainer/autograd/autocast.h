// Autocast, after torch.autocast: operations that are safe and faster in a small type run in it. The others run in
// float32.
//
//   {
//     const Autocast autocast(at::kCUDA);              // float16; on the CPU bfloat16
//     loss = criterion(model.forward(input), target);  // backward goes outside
//   }
#pragma once

#include <array>
#include <optional>

#include "c10/core/DeviceType.h"
#include "c10/core/ScalarType.h"

namespace cohort::trainer {

// While it lives, the calling thread autocasts on `device` (CPU or CUDA) to `dtype`. With `enabled` false it does not
// autocast. Guards nest; each restores the state that it found. Casts of weights are kept until the outermost guard
// goes, unless `cache_enabled` is false. Throws c10::Error for other devices and types.
class [[nodiscard]] Autocast {
 public:
  explicit Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype = std::nullopt, bool enabled = true,
                    bool cache_enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_before_;
  c10::ScalarType dtype_before_;
  bool cache_before_;
};

// The autocast settings of one thread.
struct AutocastState {
  struct Device {
    bool enabled = false;
    c10::ScalarType dtype = c10::ScalarType::Float;
  };
  std::array<Device, 2> devices;  // CPU, CUDA
  bool cache = true;
};
AutocastState CurrentAutocast();

// While it lives, the calling thread autocasts as `state` says. It has its own cache if none is in use.
class [[nodiscard]] AutocastStateGuard {
 public:
  explicit AutocastStateGuard(const AutocastState& state);
  ~AutocastStateGuard();
  AutocastStateGuard(const AutocastStateGuard&) = delete;
  AutocastStateGuard& operator=(const AutocastStateGuard&) = delete;

 private:
  AutocastState before_;
};

}  // namespace cohort::trainer
