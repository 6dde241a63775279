#include "cohort/launcher/base/bounded_call.h"

#include <string>
#include <system_error>
#include <utility>

#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {

using runtime::CondVar;
using runtime::Deadline;
using runtime::Mutex;
using runtime::MutexLock;

struct BoundedCall::Shared {
  Mutex mutex;
  CondVar changed;
  std::optional<absl::Status> result COHORT_GUARDED_BY(mutex);

  void Return(absl::Status status) {
    MutexLock lock(mutex);
    result = std::move(status);
    changed.NotifyAll();
  }
};

BoundedCall::BoundedCall(std::function<absl::Status()> call) : shared_(std::make_shared<Shared>()) {
  try {
    thread_ = std::thread([shared = shared_, call = std::move(call)] { shared->Return(call()); });
  } catch (const std::system_error& error) {
    shared_->Return(
        WithRemedy(Remedy::kProcessLimit,
                   absl::ResourceExhaustedError("no thread for it (" + error.code().message() + "); raise ulimit -u")));
  }
}

BoundedCall::~BoundedCall() {
  if (thread_.joinable()) thread_.detach();
}

std::optional<absl::Status> BoundedCall::Await(Deadline deadline) {
  std::optional<absl::Status> result;
  {
    MutexLock lock(shared_->mutex);
    while (!shared_->result && !deadline.passed()) shared_->changed.Wait(shared_->mutex, deadline);
    result = shared_->result;
  }
  if (result && thread_.joinable()) thread_.join();
  return result;
}

}  // namespace cohort::launcher
