// The life of one device's part in a group's NCCL calls.
#pragma once

namespace cohort::comm::nccl {

enum class DeviceLife {
  kFresh,      // not used yet
  kPreparing,  // its communicator is being made, and the engine is driven meanwhile
  kReady,      // prepared, with a communicator or without
  kStopping,   // the group has failed; something of it may still run
  kStopped,    // nothing of it runs any more
};

// Whether a device may go from `from` to `to`:
//   fresh     -> preparing
//   preparing -> ready, stopping, stopped (there is no communicator yet)
//   ready     -> stopping, stopped (there is no communicator)
//   stopping  -> stopped
constexpr bool MayFollow(DeviceLife from, DeviceLife to) {
  switch (to) {
    case DeviceLife::kFresh:
      return false;
    case DeviceLife::kPreparing:
      return from == DeviceLife::kFresh;
    case DeviceLife::kReady:
      return from == DeviceLife::kPreparing;
    case DeviceLife::kStopping:
      return from == DeviceLife::kPreparing || from == DeviceLife::kReady;
    case DeviceLife::kStopped:
      return from == DeviceLife::kPreparing || from == DeviceLife::kReady || from == DeviceLife::kStopping;
  }
  return false;
}

// Prepare was called.
constexpr bool WasPrepared(DeviceLife life) { return life != DeviceLife::kFresh; }
// The group has failed.
constexpr bool HasEnded(DeviceLife life) { return life == DeviceLife::kStopping || life == DeviceLife::kStopped; }

}  // namespace cohort::comm::nccl
