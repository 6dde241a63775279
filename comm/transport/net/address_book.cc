#include "cohort/comm/transport/net/address_book.h"

#include <algorithm>
#include <chrono>

#include "cohort/runtime/base/thread.h"

namespace cohort::comm::net {
namespace {

// How long one call to the store may wait for a peer that has not published. All wanted peers are asked in turn.
// Each of many absent ones gets less time, lest one that is there waits for them.
constexpr std::chrono::milliseconds kAttempt(200);
constexpr std::chrono::milliseconds kShortestAttempt(5);
// A rank that uses several transports may make this one later than another.
constexpr std::chrono::seconds kChoiceHolds(10);

}  // namespace

AddressBook::AddressBook(runtime::KeyValueStore* store, std::string transport, uint64_t epoch,
                         std::function<void()> notify)
    : store_(store), transport_(std::move(transport)), epoch_(epoch), notify_(std::move(notify)) {}

void AddressBook::Stop() {
  {
    runtime::MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::string AddressBook::Key(int world_rank) const {
  return transport_ + "/address/" + std::to_string(epoch_) + "/" + std::to_string(world_rank);
}

std::string AddressBook::ChoiceKey(int world_rank) const {
  return "net/choice/" + std::to_string(epoch_) + "/" + std::to_string(world_rank);
}

absl::Status AddressBook::Publish(int world_rank, const std::string& value) {
  (void)store_->Put(ChoiceKey(world_rank), transport_);  // refused where another one was made first
  return store_->Put(Key(world_rank), value);
}

absl::Status AddressBook::CheckChoice(int world_rank) const {
  const absl::StatusOr<std::string> choice =
      store_->Get(ChoiceKey(world_rank), runtime::Deadline::After(kShortestAttempt));
  if (!choice.ok() || *choice == transport_) return absl::OkStatus();
  return absl::FailedPreconditionError("it uses " + *choice + ", this rank " + transport_ +
                                       ": set COHORT_TRANSPORTS=tcp on all hosts, or install the same on all of them");
}

void AddressBook::LookUp(int world_rank) {
  runtime::MutexLock lock(mutex_);
  wanted_.push_back({world_rank, std::chrono::steady_clock::now()});
  if (!thread_.joinable()) thread_ = runtime::StartThread("cohort-net-book", [this] { Run(); });
  changed_.NotifyAll();
}

void AddressBook::Forget(int world_rank) {
  runtime::MutexLock lock(mutex_);
  std::erase_if(wanted_, [world_rank](const Wanted& wanted) { return wanted.world_rank == world_rank; });
}

std::vector<AddressBook::Answer> AddressBook::Take() {
  runtime::MutexLock lock(mutex_);
  return std::exchange(answers_, {});
}

void AddressBook::Run() {
  while (true) {
    Wanted next;
    std::chrono::milliseconds attempt = kAttempt;
    {
      runtime::MutexLock lock(mutex_);
      while (!stop_ && wanted_.empty()) changed_.Wait(mutex_);
      if (stop_) return;
      next = wanted_.front();
      wanted_.pop_front();
      attempt = std::max(kShortestAttempt, kAttempt / static_cast<int>(wanted_.size() + 1));
      wanted_.push_back(next);  // asked again after the others, unless this attempt succeeds
    }
    const int rank = next.world_rank;
    absl::StatusOr<std::string> value = store_->Get(Key(rank), runtime::Deadline::After(attempt));
    bool again = absl::IsDeadlineExceeded(value.status()) || absl::IsNotFound(value.status());
    if (again && std::chrono::steady_clock::now() - next.since > kChoiceHolds) {
      if (absl::Status choice = CheckChoice(rank); !choice.ok()) {
        value = std::move(choice);
        again = false;
      }
    }
    {
      runtime::MutexLock lock(mutex_);
      const auto found = std::find_if(wanted_.begin(), wanted_.end(),
                                      [rank](const Wanted& wanted) { return wanted.world_rank == rank; });
      if (found == wanted_.end()) continue;  // forgotten meanwhile
      if (again) {
        // A store whose Get returns at once must not make this a tight loop.
        if (!stop_) changed_.Wait(mutex_, runtime::Deadline::After(kShortestAttempt));
        continue;
      }
      wanted_.erase(found);
      answers_.push_back({rank, std::move(value)});
    }
    notify_();
  }
}

}  // namespace cohort::comm::net
