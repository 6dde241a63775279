// The providers that serve the calls of one group.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/group/provider_registry.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"
#include "cohort/comm/run/runner.h"
#include "cohort/comm/tape/group_tape.h"

namespace cohort::comm {

// Used by the engine's owner. What is done to all providers is done in the order of providers.def.
class GroupProviders {
 public:
  // Both outlive it.
  GroupProviders(const GroupContext& group, LinkSource& links) : group_(group), links_(links) {}

  // The group is complete: from here on its calls are recorded or replayed, where its runtime has a tape.
  void Open() { tape_ = GroupTape::Of(group_); }
  // The provider that serves the request, made when first needed.
  absl::StatusOr<Provider*> For(const CollectiveRequest& request);
  bool Poll() {
    bool moved = false;
    for (const auto& provider : providers_) {
      if (provider != nullptr) moved = provider->Poll() || moved;
    }
    return moved;
  }
  bool Active() const {
    return std::any_of(providers_.begin(), providers_.end(),
                       [](const auto& provider) { return provider != nullptr && provider->Active(); });
  }
  // Provider::Arm, OnSplit, OnTuning, Fail of all that there are.
  void Arm();
  void OnSplit(int color, int key, uint64_t child);
  void OnTuning();
  void Fail(const absl::Status& status);
  // Fails those that have something under way. The others end in order, when the group goes.
  void FailActive(const absl::Status& status);
  // The oldest call that is under way, or null. A collective comes before a message, of which it says more.
  const runtime::CallRecord* Pending() const;
  // Whether this collective is under way.
  bool WaitsIn(uint64_t sequence) const;
  // Destroys them all.
  void Clear();

 private:
  template <typename Function>
  void ForEach(Function function) const {
    for (const auto& provider : providers_) {
      if (provider != nullptr) function(*provider);
    }
  }

  const GroupContext& group_;
  LinkSource& links_;
  std::unique_ptr<GroupTape> tape_;  // null: there is none
  std::array<std::unique_ptr<Provider>, kProviders> providers_;
};

}  // namespace cohort::comm
