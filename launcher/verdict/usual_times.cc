#include "cohort/launcher/verdict/usual_times.h"

#include "cohort/launcher/verdict/critical_path.h"
#include "cohort/launcher/verdict/statistics.h"

namespace cohort::launcher {
namespace {

constexpr size_t kFewestOthers = 2;  // steps

}  // namespace

UsualTimes::UsualTimes(const Timelines& timelines, const Steps& steps) {
  for (size_t step = 0; step < steps.all.size(); ++step) {
    size_t at = 0;
    for (const auto& [rank, line] : timelines.ranks) {
      const Step::Part& part = steps.all[step].parts[at++];
      for (size_t i = part.first; i < part.last; ++i) {
        times_[KeyOf(rank, line[i])].push_back(
            {.step = step, .call = i, .own_ns = line[i].own_ns(), .call_ns = CallSpan(line, i).length_ns()});
      }
    }
  }
}

uint64_t UsualTimes::KeyOf(uint32_t rank, const PlacedCall& placed) {
  uint64_t key = placed.symbol * 0x9e3779b97f4a7c15u ^ placed.occurrence * 0xc4ceb9fe1a85ec53u;
  key = (key ^ key >> 29 ^ rank) * 0xbf58476d1ce4e5b9u;
  return key ^ key >> 32;
}

std::optional<uint64_t> UsualTimes::MedianOf(uint32_t rank, const PlacedCall& placed, size_t except,
                                             uint64_t Time::* part) const {
  const auto found = times_.find(KeyOf(rank, placed));
  if (found == times_.end()) return std::nullopt;
  std::vector<uint64_t> values;
  for (const Time& time : found->second) {
    if (time.step != except) values.push_back(time.*part);
  }
  if (values.size() < kFewestOthers) return std::nullopt;
  return Median(std::move(values));
}

std::optional<uint64_t> UsualTimes::OwnNs(uint32_t rank, const PlacedCall& placed, size_t except) const {
  return MedianOf(rank, placed, except, &Time::own_ns);
}

std::optional<uint64_t> UsualTimes::CallNs(uint32_t rank, const PlacedCall& placed, size_t except) const {
  return MedianOf(rank, placed, except, &Time::call_ns);
}

std::vector<size_t> UsualTimes::Others(uint32_t rank, const PlacedCall& placed, size_t except, size_t most) const {
  std::vector<size_t> others;
  const auto found = times_.find(KeyOf(rank, placed));
  if (found == times_.end()) return others;
  for (auto time = found->second.rbegin(); time != found->second.rend() && others.size() < most; ++time) {
    if (time->step != except) others.push_back(time->call);
  }
  return others;
}

}  // namespace cohort::launcher
