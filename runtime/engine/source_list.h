// The sources that an engine polls, in the order of addition. Used by the engine's owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cohort/runtime/engine/engine.h"

namespace cohort::runtime {

class SourceList {
 public:
  // Allowed while the list is polled.
  void Add(ProgressSource* source, bool first) {
    sources_.insert(first ? sources_.begin() : sources_.end(), source);  // which may find no memory
    source->polled_ = true;
  }
  // Until it is found inactive.
  void AddWhileActive(ProgressSource* source) {
    source->only_while_active_ = true;
    Add(source, /*first=*/false);
  }
  void Remove(ProgressSource* source) {
    if (!source->polled_) return;
    source->polled_ = false;
    const auto found = std::find(sources_.begin(), sources_.end(), source);
    if (polling_ == 0) {
      sources_.erase(found);
    } else {
      *found = nullptr;
      removed_ = true;
    }
  }

  // Polls every source once; true when anything moved.
  bool Poll() {
    bool moved = false;
    ++polling_;
    for (size_t i = 0; i < sources_.size(); ++i) {  // a poll may add sources
      if (sources_[i] != nullptr) moved |= sources_[i]->Poll();
    }
    if (--polling_ > 0) return moved;
    if (removed_) [[unlikely]] {
      std::erase(sources_, nullptr);
      removed_ = false;
    }
    if (polls_until_drop_-- == 0) [[unlikely]] {
      polls_until_drop_ = kPollsUntilDrop;
      DropIdle();
    }
    return moved;
  }

  bool AnyActive() const {
    return std::any_of(sources_.begin(), sources_.end(),
                       [](const ProgressSource* source) { return source != nullptr && source->Active(); });
  }

  // Some may be null.
  const std::vector<ProgressSource*>& all() const { return sources_; }

 private:
  // The number of polls after which a source polled only while active is asked whether it still is.
  static constexpr uint32_t kPollsUntilDrop = 64;

  void DropIdle() {
    std::erase_if(sources_, [](ProgressSource* source) {
      if (!source->only_while_active_ || source->Active()) return false;
      source->polled_ = false;
      return true;
    });
  }

  std::vector<ProgressSource*> sources_;  // null: removed while polling
  int polling_ = 0;
  bool removed_ = false;
  uint32_t polls_until_drop_ = 0;
};

}  // namespace cohort::runtime
