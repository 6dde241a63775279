// What other parts may ask about CUDA without its headers. Works in every build.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cohort::comm::cuda {

// How many CUDA devices this process can use; at least 1. `library` names another CUDA runtime than the usual one
// (Environment's COHORT_CUDA_LIBRARY). kUnimplemented when built without CUDA or when its runtime is missing,
// kUnavailable when there is no device or driver; each says what to do.
absl::StatusOr<int> DeviceCount(const std::string& library = "");

}  // namespace cohort::comm::cuda
