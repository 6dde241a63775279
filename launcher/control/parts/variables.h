// The job's variables: values that every rank may change, count in and wait for. Their semantics are those of
// torch.distributed's TCPStore. Bounded in number, bytes and waiters, since what ranks send decides how much it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/launcher/control/parts/key_waiters.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::launcher {

class Variables {
 public:
  using TimePoint = KeyWaiters::TimePoint;
  using Waiter = KeyWaiters::Waiter;

  static constexpr size_t kMaxKeyBytes = 1024;
  static constexpr size_t kMaxValueBytes = 48 << 10;  // an answer is one packet of the rank's socket
  static constexpr size_t kMaxVariables = 128 << 10;
  static constexpr size_t kMaxTotalBytes = 64 << 20;  // keys and values together

  // Does what is asked, and returns the answer; none if it waits, as a get of a variable that is not there does until
  // `until`. The variable's waiters move to `answered` when it comes to be: their answer is its value.
  std::optional<v1::VariableReply> Do(const v1::VariableRequest& request, Waiter waiter, TimePoint now, TimePoint until,
                                      std::vector<Waiter>* answered);
  // The value of a variable, or null.
  const std::string* Find(const std::string& key) const;

  std::vector<Waiter> Expire(TimePoint now) { return waiters_.Expire(now); }
  std::optional<TimePoint> NextExpiry() const { return waiters_.NextExpiry(); }
  void Forget(uint64_t connection) { waiters_.Forget(connection); }

 private:
  // Empty, or why it is not stored.
  std::string Set(const std::string& key, const std::string& value, std::vector<Waiter>* answered);
  void Add(const v1::VariableRequest& request, v1::VariableReply* reply, std::vector<Waiter>* answered);
  void CompareSet(const v1::VariableRequest& request, v1::VariableReply* reply, std::vector<Waiter>* answered);
  void Delete(const std::string& key);
  void TakeValue(const std::string& key, v1::VariableReply* reply) const;

  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;
  KeyWaiters waiters_;
};

}  // namespace cohort::launcher
