// Lists of machines as services write them into a variable. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cohort::launcher {

// The names of "a,b", "a;b", "a b", of lines, or of a JSON list of strings, without ports: "a:29500" is "a". An IPv6
// address keeps its colons. Names without a character are left out.
std::vector<std::string> NamesIn(std::string_view text);

}  // namespace cohort::launcher
