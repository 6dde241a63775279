// The job's variables as the rendezvous keeps them, for the stores of several nodes in one process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/control/parts/variables.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::launcher {

class JobVariables {
 public:
  using Answer = std::function<void(const v1::VariableReply&)>;

  // The loop outlives this object, and runs no more after it.
  explicit JobVariables(EventLoop* loop) : loop_(loop) {}

  // Returns the way in which a store asks. Its answers come on the loop.
  std::function<void(const v1::VariableRequest&)> AskFor(Answer answer) {
    answers_.push_back(std::move(answer));
    return [this, store = answers_.size() - 1](const v1::VariableRequest& request) { Ask(store, request); };
  }
  const std::string* Find(const std::string& key) const { return variables_.Find(key); }
  // Its requests so far.
  const std::vector<v1::VariableRequest>& requests() const { return requests_; }

 private:
  void Ask(size_t store, const v1::VariableRequest& request) {
    requests_.push_back(request);
    std::vector<KeyWaiters::Waiter> answered;
    const auto now = std::chrono::steady_clock::now();
    const auto until = now + std::chrono::milliseconds(request.timeout_ms());
    std::optional<v1::VariableReply> reply = variables_.Do(request, {store, request.request()}, now, until, &answered);
    if (reply) {
      reply->set_request(request.request());
      Post(store, *reply);
    }
    for (const KeyWaiters::Waiter& waiter : answered) {
      v1::VariableReply found;
      found.set_request(waiter.request);
      found.set_found(true);
      found.set_value(*variables_.Find(request.key()));
      Post(waiter.connection, found);
    }
  }
  void Post(size_t store, const v1::VariableReply& reply) {
    loop_->Post([this, store, reply] { answers_[store](reply); });
  }

  EventLoop* const loop_;
  Variables variables_;
  std::vector<v1::VariableRequest> requests_;
  std::vector<Answer> answers_;
};

// Runs what is posted, what comes over descriptors that are ready, and what both lead to. No timer fires.
inline void RunPosted(EventLoop* loop) {
  constexpr int kTurns = 50;
  for (int turn = 0; turn < kTurns; ++turn) {
    loop->Post([loop] { loop->Quit(); });
    loop->Run();
  }
}

}  // namespace cohort::launcher
