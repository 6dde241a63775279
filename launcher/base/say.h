// dlaunch's own words, on the standard error.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace cohort::launcher {

// Prints "dlaunch: TEXT", which may hold text from elsewhere: see PrintableLines. Not from where a front-end runs,
// whose printer does it without blocking.
void Say(const std::string& text);
// The same; returns `exit_code`, for a process that ends with it.
int Refuse(const std::string& text, int exit_code);
int Refuse(const absl::Status& status, int exit_code);

// "1 rank", "2 ranks".
std::string Plural(size_t count, const std::string& what);

}  // namespace cohort::launcher
