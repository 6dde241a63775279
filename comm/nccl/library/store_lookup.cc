#include "cohort/comm/nccl/library/store_lookup.h"

#include <chrono>
#include <utility>

#include "cohort/runtime/base/thread.h"

namespace cohort::comm::nccl {
namespace {

// How long one call to the store may wait.
constexpr std::chrono::milliseconds kAttempt(200);
// Between two calls: a store whose Get returns at once must not make this a tight loop.
constexpr std::chrono::milliseconds kPause(2);

}  // namespace

StoreLookup::StoreLookup(runtime::Runtime* runtime, std::vector<std::string> keys, runtime::Deadline deadline,
                         std::function<void()> wake)
    : runtime_(runtime),
      keys_(std::move(keys)),
      deadline_(deadline),
      wake_(std::move(wake)),
      values_(keys_.size(), absl::UnknownError("not asked for")),
      thread_(runtime::StartThread("cohort-nccl-ask", [this] { Run(); })) {}

StoreLookup::~StoreLookup() {
  {
    const runtime::MutexLock lock(mutex_);
    stop_ = true;
    stopped_.NotifyAll();
  }
  thread_.join();
}

// False: it is time to end.
bool StoreLookup::Pause() {
  const runtime::MutexLock lock(mutex_);
  if (!stop_) stopped_.Wait(mutex_, runtime::Deadline::After(kPause));
  return !stop_ && !deadline_.passed();
}

void StoreLookup::Run() {
  for (size_t i = 0; i < keys_.size();) {
    absl::StatusOr<std::string> value = runtime_->Get(keys_[i], Earlier(deadline_, runtime::Deadline::After(kAttempt)));
    if (absl::IsDeadlineExceeded(value.status()) || absl::IsNotFound(value.status())) {
      if (!Pause()) return;
      continue;
    }
    const bool ok = value.ok();
    values_[i] = std::move(value);
    answers_.store(++i, std::memory_order_release);
    wake_();
    if (!ok) return;
  }
}

}  // namespace cohort::comm::nccl
