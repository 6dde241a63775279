// JSON of outside: what is nested without bound can be parsed, but not written again, which is done by recursion.
#pragma once

#include <string>

namespace cohort::trainer {

// Whether arrays and objects of the JSON `text` lie deeper within each other than those of any file that is meant.
bool NestsTooDeep(const std::string& text);

}  // namespace cohort::trainer
