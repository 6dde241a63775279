// Stable ids of errors that have a remedy. README.md explains each.
#pragma once

#include <string>
#include <string_view>

namespace cohort::launcher {

// "loopback-down" for a message about that; empty: none of remedies.def. Pure.
std::string_view RemedyOf(std::string_view message);

// The message with its id behind it: "... ip link set lo up [loopback-down]"; as it is where it has none. Pure.
std::string WithRemedy(std::string message);

}  // namespace cohort::launcher
