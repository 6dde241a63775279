// The steps of a job: marked by its program, or found by the calls that repeat. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cohort/launcher/verdict/history.h"
#include "cohort/launcher/verdict/timelines.h"

namespace cohort::launcher {

struct Step {
  // The part of one rank: its calls [first, last) of the timeline. None is known where the two are equal.
  struct Part {
    size_t first = 0;
    size_t last = 0;
    uint64_t end_ns = 0;  // when the rank ended the step
  };
  uint64_t number = 0;      // of the mark, or from 1
  Span span;                // from the last rank's end of the step before to the last rank's end
  std::vector<Part> parts;  // by the order of Timelines::ranks
};

struct Steps {
  enum class Source { kNone, kCalls, kMarks };
  Source source = Source::kNone;
  std::vector<Step> all;  // whole ones, by number
};

// Finds the steps, and numbers the calls that repeat in each (PlacedCall::occurrence). A step found by calls ends with
// a call that comes once in each, of as many ranks as possible. Where fewer than three repeat there are none.
Steps FindSteps(const History& history, Timelines* timelines);

}  // namespace cohort::launcher
