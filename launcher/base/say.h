// dlaunch's own messages on the standard error, and its answers.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace cohort::launcher {

// Prints "dlaunch: TEXT", which may hold text from elsewhere: see PrintableLines. Do not call it where a front-end
// runs: its printer does it without blocking.
void Say(const std::string& text);
// As Say; returns `exit_code`, for a process that ends with it.
int Refuse(const std::string& text, int exit_code);
// The same with TextOf(status).
int Refuse(const absl::Status& status, int exit_code);

// Prints what was asked for, the text and nothing else, on the standard output. Returns 0, or kExitLauncher with a
// message where not all of it could be written.
int Answer(const std::string& text);

// Returns "1 rank", "2 ranks".
std::string Plural(size_t count, const std::string& what);

}  // namespace cohort::launcher
