// `dlaunch why`: which rank the others of a job wait for, or waited for, and what it does meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/launcher/verdict/verdict.h"
#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

runtime::ManualCommand WhyManual();

// Returns the exit status: 0 also where no rank stands out, 1 where there is no such job, trace, step or call, 2 for
// bad arguments.
int RunWhyCommand(const std::vector<std::string>& arguments);

// The source of a verdict: one of the first two.
struct WhySource {
  struct ShortLook {
    std::chrono::milliseconds seen, asked;
  };
  std::string job;      // its id
  std::string trace;    // the path of the file
  uint64_t missed = 0;  // calls that the trace lacks
  bool cut = false;     // the trace has no end
  std::optional<ShortLook> short_look = {};
};
// The JSON of a verdict (tools/schemas/why.schema.json). Pure.
std::string WhyJson(const Verdict& verdict, const WhySource& source);

}  // namespace cohort::launcher
