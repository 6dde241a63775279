// Looks up what peers have published of a transport, such as addresses, in the job's key-value store without ever
// stopping the engine: the store's calls block, so a thread of the book's own makes them. A peer publishes when it
// makes its transport, which may be later than our first message to it; the lookup then goes on until it does.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::comm::net {

class AddressBook {
 public:
  struct Answer {
    int world_rank = -1;
    absl::StatusOr<std::string> value;  // what the peer has published, or why it can't be had
  };

  // Keys are "<transport>/address/<epoch>/<rank>", and "net/choice/<epoch>/<rank>" for the transport that a rank has
  // made first: a peer that has published another one, and for ten seconds not this one, is no peer. `store` must
  // outlive the book and bear calls from another thread. `notify` is called on the book's thread when there is an
  // answer to take; it must not block.
  AddressBook(runtime::KeyValueStore* store, std::string transport, uint64_t epoch, std::function<void()> notify);
  // Waits for a call to the store that is under way: kAttempt, and up to a second more where the agent is slow.
  ~AddressBook() { Stop(); }
  AddressBook(const AddressBook&) = delete;
  AddressBook& operator=(const AddressBook&) = delete;

  // Makes `value` this rank's address. Blocks as the store does.
  absl::Status Publish(int world_rank, const std::string& value);
  // Starts to look for `world_rank`. Once a rank.
  void LookUp(int world_rank);
  // Stops looking for `world_rank`.
  void Forget(int world_rank);
  // No more answers, and no call of `notify` after this. Waits as the destructor does.
  void Stop();
  // Answers that have come since the last call.
  std::vector<Answer> Take();

 private:
  void Run();
  std::string Key(int world_rank) const;
  std::string ChoiceKey(int world_rank) const;
  // Not OK: the rank uses another transport.
  absl::Status CheckChoice(int world_rank) const;

  runtime::KeyValueStore* const store_;
  const std::string transport_;
  const uint64_t epoch_;
  const std::function<void()> notify_;
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  bool stop_ COHORT_GUARDED_BY(mutex_) = false;
  struct Wanted {
    int world_rank = -1;
    std::chrono::steady_clock::time_point since;
  };
  std::deque<Wanted> wanted_ COHORT_GUARDED_BY(mutex_);
  std::vector<Answer> answers_ COHORT_GUARDED_BY(mutex_);
  std::thread thread_;  // started by the first lookup
};

}  // namespace cohort::comm::net
