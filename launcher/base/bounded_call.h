// Runs a call on its own thread because it may block for ever, such as one to a file server that is gone.
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
  // Begins the call. `call` must own all that it uses: a call that blocks outlives this object. It must not start
  // processes that are to end with this one: their parent-death signal would come when the call returns.
  explicit BoundedCall(std::function<absl::Status()> call);
  // Leaves a call behind that has not returned.
  ~BoundedCall();
  BoundedCall(const BoundedCall&) = delete;
  BoundedCall& operator=(const BoundedCall&) = delete;

  // Returns the call's result. kResourceExhausted: there is no thread for it. No value: the time was over first.
  std::optional<absl::Status> Await(runtime::Deadline deadline);

 private:
  struct Shared;

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace cohort::launcher
