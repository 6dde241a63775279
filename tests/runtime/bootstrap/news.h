// Listens to a runtime and waits for what it hears.
#pragma once

#include <string>
#include <vector>

#include "cohort/runtime/runtime.h"

namespace cohort::runtime::testing {

class News : public MembershipListener {
 public:
  explicit News(Runtime& runtime) : runtime_(runtime) { runtime_.AddListener(this); }
  ~News() override { runtime_.RemoveListener(this); }

  void OnRanksLost(const std::vector<int>& ranks, const std::string& text) override {
    lost.insert(lost.end(), ranks.begin(), ranks.end());
    texts.push_back(text);
  }
  void OnGroupFailure(const GroupFailure& failure) override { failures.push_back(failure); }

  // Drives the engine until something has been heard.
  bool Await(std::chrono::nanoseconds timeout = std::chrono::seconds(20)) {
    const size_t before = lost.size() + failures.size();
    return runtime_.engine().DriveUntil([&] { return lost.size() + failures.size() > before; },
                                        Deadline::After(timeout));
  }

  std::vector<int> lost;
  std::vector<std::string> texts;
  std::vector<GroupFailure> failures;

 private:
  Runtime& runtime_;
};

}  // namespace cohort::runtime::testing
