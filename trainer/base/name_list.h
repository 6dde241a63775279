// Names of tensors and layers in messages: as many as one reads, and the number of the others.
#pragma once

#include <string>
#include <vector>

namespace cohort::trainer {

// "a, b, c", or the first twenty "and 7 others"; "none" for no names.
std::string NameList(const std::vector<std::string>& names);

// "it has no a, b, which this model has; it has c, which this model has not", with `owner` in the place of "this
// model". A part without names is left out.
std::string NameDifference(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
                           const std::string& owner);

}  // namespace cohort::trainer
