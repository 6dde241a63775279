// An agent that welcomes every rank and keeps a store, and a rank that joins it.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/runtime.h"
#include "tests/runtime/bootstrap/fake_agent.h"

namespace cohort::runtime::testing {

inline Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

inline absl::StatusOr<std::unique_ptr<Runtime>> Join(const FakeAgent& agent, int local_rank,
                                                     std::chrono::nanoseconds timeout = std::chrono::seconds(20)) {
  return Runtime::Init({.init_timeout = timeout, .bootstrap = BootstrapFromAgent(agent.address(), local_rank)});
}

// Welcomes every rank and keeps a store.
class Agent {
 public:
  explicit Agent(int local_ranks)
      : fake(local_ranks, [this](FakeAgent& agent, const v1::RankMessage& message) { Answer(agent, message); }) {}

  // Messages without an answer; waits for them.
  v1::RankMessage Next() {
    MutexLock lock(mutex);
    while (reports.empty()) {
      if (!changed.Wait(mutex, Soon())) return {};
    }
    v1::RankMessage message = reports.front();
    reports.erase(reports.begin());
    return message;
  }

  Mutex mutex;
  CondVar changed;
  std::vector<v1::RankMessage> reports COHORT_GUARDED_BY(mutex);
  std::map<std::string, std::string> values;  // the agent's thread only
  FakeAgent fake;

 private:
  void Answer(FakeAgent& agent, const v1::RankMessage& message) {
    v1::AgentMessage answer;
    if (message.has_hello()) {
      agent.Send(agent.Welcome(static_cast<int>(message.hello().local_rank())), true);
    } else if (message.has_put()) {
      answer.mutable_put()->set_request(message.put().request());
      if (!values.emplace(message.put().key(), message.put().value()).second) {
        answer.mutable_put()->set_error("the key was put before");
      }
      agent.Tell(answer, 0);
    } else if (message.has_get()) {
      const auto found = values.find(message.get().key());
      answer.mutable_get()->set_request(message.get().request());
      answer.mutable_get()->set_found(found != values.end());
      if (found != values.end()) answer.mutable_get()->set_value(found->second);
      agent.Tell(answer, 0);
    } else {
      MutexLock lock(mutex);
      reports.push_back(message);
      changed.NotifyAll();
    }
  }
};

}  // namespace cohort::runtime::testing
