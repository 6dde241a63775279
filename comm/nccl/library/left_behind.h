// Memory that the device may still use when its owner goes: held for as long as the process lives.
#pragma once

#include <vector>

#include "cohort/runtime/base/mutex.h"

namespace cohort::comm::nccl {

inline void LeaveBehind(const std::vector<void*>& memory) {
  if (memory.empty()) return;
  static runtime::Mutex& mutex = *new runtime::Mutex;
  static std::vector<void*>& held = *new std::vector<void*>;
  const runtime::MutexLock lock(mutex);
  held.insert(held.end(), memory.begin(), memory.end());
}

}  // namespace cohort::comm::nccl
