// Limits the nesting of JSON read from outside: nlohmann-json parses any depth but dumps recursively.
#pragma once

#include <string>

namespace cohort::trainer {

// Whether arrays and objects of the JSON `text` lie deeper within each other than those of any file that is meant.
bool NestsTooDeep(const std::string& text);

}  // namespace cohort::trainer
