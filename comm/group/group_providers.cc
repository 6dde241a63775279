#include "cohort/comm/group/group_providers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

absl::StatusOr<Provider*> GroupProviders::For(const CollectiveRequest& request) {
  const auto entries = RegisteredProviders();
  size_t i = 0;
  while (!entries[i].serves(request)) ++i;  // the last serves all
  if (providers_[i] == nullptr) {
    absl::StatusOr<std::unique_ptr<Provider>> made = entries[i].make(&group_, &links_);
    if (!made.ok()) return made.status();
    providers_[i] = tape_ == nullptr ? *std::move(made) : tape_->Around(*std::move(made));
  }
  return providers_[i].get();
}

void GroupProviders::Arm() {
  ForEach([](Provider& provider) { provider.Arm(); });
}

void GroupProviders::OnSplit(int color, int key, uint64_t child) {
  ForEach([&](Provider& provider) { provider.OnSplit(color, key, child); });
}

void GroupProviders::OnTuning() {
  ForEach([](Provider& provider) { provider.OnTuning(); });
}

void GroupProviders::Fail(const absl::Status& status) {
  if (tape_ != nullptr) tape_->OnFailure(status);
  ForEach([&status](Provider& provider) { provider.Fail(status); });
}

void GroupProviders::FailActive(const absl::Status& status) {
  ForEach([&status](Provider& provider) {
    if (provider.Active()) provider.Fail(status);
  });
}

const runtime::CallRecord* GroupProviders::Pending() const {
  const runtime::CallRecord* message = nullptr;
  for (const auto& provider : providers_) {
    const runtime::CallRecord* record = provider == nullptr ? nullptr : provider->Pending();
    if (record == nullptr) continue;
    if (!runtime::IsPointToPoint(record->signature.kind)) return record;
    message = record;
  }
  return message;
}

bool GroupProviders::WaitsIn(uint64_t sequence) const {
  return std::any_of(providers_.begin(), providers_.end(),
                     [sequence](const auto& provider) { return provider != nullptr && provider->WaitsIn(sequence); });
}

void GroupProviders::Clear() {
  for (auto& provider : providers_) provider.reset();
}

}  // namespace cohort::comm
