// The names of services that MPI programs publish and look up (MPI_Publish_name, MPI_Lookup_name): one list for the
// job, among its variables, which end with it. On the agent's event loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/launcher/agent/mpi/stored_values.h"
#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

class ServiceNames {
 public:
  static constexpr size_t kMostNames = 512;             // of the job
  static constexpr size_t kMostNameBytes = 512;         // of a name
  static constexpr size_t kMostValueBytes = 40u << 10;  // of what it stands for

  enum class Outcome { kDone, kTaken, kUnknown, kNoRoom, kTooLong };
  // For people, a few words; empty for kDone.
  static std::string_view WhyNot(Outcome outcome);
  using Done = std::function<void(Outcome)>;
  using Found = std::function<void(std::optional<std::string> value)>;

  // The store outlives this object. `kind` tells apart the names of libraries that don't understand each other's.
  ServiceNames(EventLoop* loop, StoredValues* store, std::string kind)
      : loop_(loop), store_(store), kind_(std::move(kind)) {}
  ~ServiceNames() {
    *lives_ = false;
    for (const EventLoop::TimerId timer : timers_) loop_->Cancel(timer);
  }
  ServiceNames(const ServiceNames&) = delete;
  ServiceNames& operator=(const ServiceNames&) = delete;

  // kTaken: somebody has published that name. kNoRoom: kMostNames are published.
  void Publish(const std::string& name, const std::string& value, Done done);
  // kUnknown: nobody has published it.
  void Unpublish(const std::string& name, Done done);
  // Nothing when nobody has published it by the end of `wait`.
  void Look(const std::string& name, std::chrono::milliseconds wait, Found found);

 private:
  std::string KeyOf(const std::string& name) const { return "name/" + kind_ + "/" + name; }
  // Nothing comes back once this object is gone.
  void Call(v1::VariableRequest request, std::function<void(const v1::VariableReply&)> then);
  void Count(int64_t amount, std::function<void(int64_t)> then);
  void LookUntil(const std::string& name, EventLoop::Clock::time_point until, Found found);

  EventLoop* const loop_;
  StoredValues* const store_;
  const std::string kind_;
  std::set<EventLoop::TimerId> timers_;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);
};

}  // namespace cohort::launcher
