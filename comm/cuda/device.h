// Answers questions about CUDA without CUDA's headers. Works in every build.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cohort::comm::cuda {

// Returns the number of CUDA devices that this process can use, at least 1. `library` names another CUDA runtime than
// the usual one (Environment's COHORT_CUDA_LIBRARY). kUnimplemented: this build has no CUDA, or its runtime is missing.
// kUnavailable: there is no device or driver. Each error says what to do.
absl::StatusOr<int> DeviceCount(const std::string& library = "");

}  // namespace cohort::comm::cuda
