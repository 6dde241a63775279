// How long each rank usually takes before each call of a step, and for the call itself. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cohort/launcher/verdict/steps.h"
#include "cohort/launcher/verdict/timelines.h"

namespace cohort::launcher {

class UsualTimes {
 public:
  UsualTimes(const Timelines& timelines, const Steps& steps);

  // The medians over the steps but `except`, an index of Steps::all. Nothing where it is in too few of them.
  std::optional<uint64_t> OwnNs(uint32_t rank, const PlacedCall& placed, size_t except) const;
  std::optional<uint64_t> CallNs(uint32_t rank, const PlacedCall& placed, size_t except) const;
  // The calls of other steps at the same place: at most `most`, the latest of them.
  std::vector<size_t> Others(uint32_t rank, const PlacedCall& placed, size_t except, size_t most) const;

 private:
  struct Time {
    size_t step = 0;
    size_t call = 0;  // index in the timeline
    uint64_t own_ns = 0;
    uint64_t call_ns = 0;
  };
  static uint64_t KeyOf(uint32_t rank, const PlacedCall& placed);
  std::optional<uint64_t> MedianOf(uint32_t rank, const PlacedCall& placed, size_t except, uint64_t Time::* part) const;

  std::unordered_map<uint64_t, std::vector<Time>> times_;
};

}  // namespace cohort::launcher
