#include "tools/measure/points.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"
#include "tools/measure/text.h"
#include "tools/program/arguments.h"

namespace cohort::measure {
namespace {

constexpr const char* kSizeOptions[] = {"--minbytes", "--maxbytes", "--stepfactor", "--stepbytes", "--bytes"};

absl::StatusOr<std::vector<int64_t>> ParseList(const std::string& bytes) {
  std::vector<int64_t> sizes;
  for (const std::string& text : SplitAtCommas(bytes)) {
    COHORT_ASSIGN_OR_RETURN(const int64_t size, ParseBytes(text));
    sizes.push_back(size);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace

void AddPointOptions(CLI::App* app, PointArguments* arguments) {
  app->add_option("operation", arguments->operations,
                  "all, or one or more, separated by commas, of: " + OperationNames());
  app->add_option("-b,--minbytes", arguments->min_bytes, "smallest block, such as 8 or 64K")->capture_default_str();
  app->add_option("-e,--maxbytes", arguments->max_bytes, "largest block")->capture_default_str();
  app->add_option("-f,--stepfactor", arguments->factor, "from one size to the next")
      ->check(tools::Number(1.01, 1e9))
      ->capture_default_str();
  app->add_option("-i,--stepbytes", arguments->step_bytes, "add this instead of multiplying");
  app->add_option("--bytes", arguments->bytes, "exactly these blocks, separated by commas, such as 8,64K,4M");
}

bool NamesSizes(const CLI::App& app) {
  return std::any_of(std::begin(kSizeOptions), std::end(kSizeOptions),
                     [&app](const char* option) { return app.count(option) > 0; });
}

absl::StatusOr<std::vector<Operation>> ParseOperations(const std::string& names) {
  if (names == "all") return AllOperations();
  std::vector<Operation> operations;
  for (const std::string& name : SplitAtCommas(names)) {
    Operation operation{};
    if (!ParseOperation(name, &operation)) {
      return absl::InvalidArgumentError("there is no operation \"" + name + "\"; there are all, " + OperationNames());
    }
    operations.push_back(operation);
  }
  return operations;
}

absl::StatusOr<std::vector<int64_t>> ParseSizes(const PointArguments& arguments) {
  if (!arguments.bytes.empty()) return ParseList(arguments.bytes);
  COHORT_ASSIGN_OR_RETURN(const int64_t min_bytes, ParseBytes(arguments.min_bytes));
  COHORT_ASSIGN_OR_RETURN(const int64_t max_bytes, ParseBytes(arguments.max_bytes));
  int64_t step_bytes = 0;
  if (!arguments.step_bytes.empty()) {
    COHORT_ASSIGN_OR_RETURN(step_bytes, ParseBytes(arguments.step_bytes));
  }
  if (max_bytes < min_bytes) {
    return absl::InvalidArgumentError("-e " + arguments.max_bytes + " is less than -b " + arguments.min_bytes);
  }
  std::vector<int64_t> sizes;
  for (int64_t bytes = min_bytes; bytes <= max_bytes && sizes.size() <= kMostSizes;) {
    sizes.push_back(bytes);
    const double next = std::round(static_cast<double>(bytes) * arguments.factor);
    const int64_t most = std::numeric_limits<int64_t>::max();
    if (bytes >= most - std::max<int64_t>(step_bytes, 1) || (step_bytes == 0 && next >= 0x1p63)) break;
    bytes = step_bytes > 0 ? bytes + step_bytes : std::max(bytes + 1, static_cast<int64_t>(next));
  }
  if (sizes.size() > kMostSizes) {
    return absl::InvalidArgumentError("from -b " + arguments.min_bytes + " to -e " + arguments.max_bytes +
                                      " are more than " + std::to_string(kMostSizes) +
                                      " sizes: take a larger -i or -f");
  }
  return sizes;
}

}  // namespace cohort::measure
