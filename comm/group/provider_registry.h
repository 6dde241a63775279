// The providers of this build (providers.def).
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/run/runner.h"

namespace cohort::comm {

struct ProviderEntry {
  // Pure in what all members share.
  bool (*serves)(const CollectiveRequest& request);
  // For one group, on its first call of that sort. Both arguments outlive the provider.
  absl::StatusOr<std::unique_ptr<Provider>> (*make)(const GroupContext* group, LinkSource* links);
};

inline constexpr size_t kProviders = 0
#define COHORT_PROVIDER(name, serves, factory) +1
#include "cohort/comm/group/providers.def"
#undef COHORT_PROVIDER
    ;

// In the order of the list.
std::span<const ProviderEntry, kProviders> RegisteredProviders();

}  // namespace cohort::comm
