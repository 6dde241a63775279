// The line by which a dlaunch that waits for other machines tells how they join.
#pragma once

#include <string>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {

// Waits for the line. Its token; empty when it does not come.
inline std::string TokenOf(DlaunchProcess* first) {
  const std::string line = "dlaunch join - <<< ";
  const auto printed = [&] {
    const size_t at = first->err().find(line);
    return at != std::string::npos && first->err().find('\n', at) != std::string::npos;
  };
  if (!first->WaitUntil(printed)) return "";
  const size_t at = first->err().find(line) + line.size();
  return first->err().substr(at, first->err().find('\n', at) - at);
}

}  // namespace cohort::launcher
