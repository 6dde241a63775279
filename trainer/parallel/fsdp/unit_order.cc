#include "cohort/trainer/parallel/fsdp/unit_order.h"

#include <algorithm>
#include <utility>

namespace cohort::trainer {

void UnitOrder::Close() {
  if (!order_.empty()) last_ = std::exchange(order_, {});
}

void UnitOrder::Forget() {
  order_.clear();
  last_.clear();
}

FsdpUnit* UnitOrder::NextForward(const FsdpUnit& unit) const {
  const size_t place = order_.size();
  return place + 1 < last_.size() && last_[place] == &unit ? last_[place + 1] : nullptr;
}

FsdpUnit* UnitOrder::NextBackward(const FsdpUnit& unit) const {
  if (order_.empty()) return nullptr;
  if (&unit == order_.front()) return order_.back();
  const auto found = std::find(order_.rbegin(), order_.rend(), &unit);
  return found == order_.rend() ? nullptr : *(found + 1);
}

std::vector<FsdpUnit*> UnitOrder::ForReductions(const std::vector<std::shared_ptr<FsdpUnit>>& all) const {
  // A second backward pass of one forward pass, or of one before the last, runs through the same units.
  std::vector<FsdpUnit*> order = order_.empty() ? last_ : order_;
  std::stable_partition(order.begin(), order.end(), [](const FsdpUnit* unit) { return unit->runs().repeated(); });
  std::vector<FsdpUnit*> found;
  const auto add = [&found](FsdpUnit* unit) {
    if (std::find(found.begin(), found.end(), unit) == found.end()) found.push_back(unit);
  };
  std::for_each(order.rbegin(), order.rend(), add);
  for (const auto& unit : all) add(unit.get());
  return found;
}

}  // namespace cohort::trainer
