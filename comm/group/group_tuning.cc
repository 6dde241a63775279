// What a group's choices of algorithms are made with.
#include <utility>

#include "cohort/comm/group/group.h"

namespace cohort::comm {

void Group::UseTuning(const Tuning& tuning) {
  runtime::EngineLock lock(runtime().engine());
  context_.tuning = tuning;
  OnTuning();
}

void Group::ExpectWindows() {
  runtime::EngineLock lock(runtime().engine());
  if (std::exchange(context_.windows, true)) return;
  OnTuning();
}

void Group::OnTuning() {
  memo_.Clear();
  for (const auto& provider : providers_) {
    if (provider != nullptr) provider->OnTuning();
  }
}

}  // namespace cohort::comm
