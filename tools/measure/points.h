// The points of a measurement on the command line, operations and sizes: the same options in every harness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "tools/measure/operation.h"

namespace cohort::measure {

struct PointArguments {
  std::string operations;  // "all", or names separated by commas
  std::string bytes;       // sizes separated by commas, in place of those below
  std::string min_bytes = "8";
  std::string max_bytes = "128M";
  std::string step_bytes;
  double factor = 4;
};

// More sizes are refused.
inline constexpr size_t kMostSizes = 100'000;

void AddPointOptions(CLI::App* app, PointArguments* arguments);
// Whether the command line names sizes.
bool NamesSizes(const CLI::App& app);
absl::StatusOr<std::vector<Operation>> ParseOperations(const std::string& names);
// The sizes of a block to measure, ascending. kInvalidArgument where there is none, or what is no size.
absl::StatusOr<std::vector<int64_t>> ParseSizes(const PointArguments& arguments);

}  // namespace cohort::measure
