// A call that may block for ever, as those to a file server that is gone do, on a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::launcher {

class BoundedCall {
 public:
  // Begins. `call` must own what it uses: where it blocks it outlives this object. It must not start processes.
  explicit BoundedCall(std::function<absl::Status()> call);
  // Leaves a call behind that has not returned.
  ~BoundedCall();
  BoundedCall(const BoundedCall&) = delete;
  BoundedCall& operator=(const BoundedCall&) = delete;

  // What it returned; kResourceExhausted: there is no thread for it. None where the time was over first.
  std::optional<absl::Status> Await(runtime::Deadline deadline);

 private:
  struct Shared;

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace cohort::launcher
