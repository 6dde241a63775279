// All forms of a description, by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cohort/runtime/manual/command.h"

namespace cohort::runtime {

inline constexpr char kDescribeOption[] = "--describe";
inline constexpr char kFormNames[] = "man, markdown, bash, zsh, fish";

// The program in the form "man", "markdown", "bash", "zsh" or "fish"; nothing for another name. `build` is named in the
// manual page: "cohort 0.1.0". Pure.
std::optional<std::string> Form(const ManualCommand& program, std::string_view form, const std::string& build);

}  // namespace cohort::runtime
