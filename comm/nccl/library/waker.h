// Lets threads of CUDA, and those that end communicators, wake the thread that drives the engine.
#pragma once

#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/engine/engine.h"

namespace cohort::comm::nccl {

// Shared: what calls Wake may outlive the engine.
class Waker {
 public:
  explicit Waker(runtime::Engine* engine) : engine_(engine) {}
  void Wake() {
    const runtime::MutexLock lock(mutex_);
    if (engine_ != nullptr) engine_->Kick();
  }
  // The engine is about to go away.
  void Detach() {
    const runtime::MutexLock lock(mutex_);
    engine_ = nullptr;
  }

 private:
  runtime::Mutex mutex_;
  runtime::Engine* engine_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::comm::nccl
