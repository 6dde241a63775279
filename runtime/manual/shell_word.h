// Words for shells.
#pragma once

#include <string>
#include <string_view>

namespace cohort::runtime {

// The text between single quotes, as one word that a POSIX shell takes literally. Pure.
std::string ShellWord(std::string_view text);

}  // namespace cohort::runtime
