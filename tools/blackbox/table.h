// Segments in words and as JSON.
#pragma once

#include <functional>
#include <string>

#include "tools/blackbox/segment_copy.h"

namespace cohort::blackbox {

// Returns the kernel's state of a pid; tests replace it.
using StateOfProcess = std::function<std::string(int pid)>;

// One line for each record; a rank without records has one line too.
std::string TableText(const SegmentCopy& segment, const StateOfProcess& state_of);
std::string JsonText(const SegmentCopy& segment, const StateOfProcess& state_of);

}  // namespace cohort::blackbox
