// Checks of command-line arguments for CLI::Option::check(). Their errors stay short whatever was typed.
#pragma once

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"

namespace cohort::tools {

// A whole number in decimal from `least` to `most`.
CLI::Validator Whole(int64_t least, int64_t most);
// A number from `least` to `most`, which "nan" and "inf" are not.
CLI::Validator Number(double least, double most);
// Anything but nothing: an empty name is a variable of a script that was not set. `what`: "the name of a file".
CLI::Validator NotEmpty(const std::string& what);

}  // namespace cohort::tools
