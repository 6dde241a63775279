// Finds the data that the examples train on.
#pragma once

#include <string>

namespace cohort::examples {

// Returns the path of share/cohort/NAME beside the folder of this program or one of the two above it. Throws c10::Error
// naming the first of these places.
std::string FindExampleData(const std::string& name);

}  // namespace cohort::examples
