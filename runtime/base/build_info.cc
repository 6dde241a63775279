#include "cohort/runtime/base/build_info.h"

#include <string_view>
#include <utility>

namespace cohort::runtime {
namespace {

void Add(std::string_view name, std::string* names) { *names += (names->empty() ? "" : " and ") + std::string(name); }

}  // namespace

std::string DescribeBuild() {
  constexpr std::pair<const char*, bool> kParts[] = {
      {"UCX", COHORT_BUILD_HAS_UCX != 0}, {"CUDA", COHORT_BUILD_HAS_CUDA != 0}, {"NCCL", COHORT_BUILD_HAS_NCCL != 0}};
  std::string with;
  std::string without;
  for (const auto& [name, there] : kParts) Add(name, there ? &with : &without);
  std::string text = COHORT_VERSION;
  if (const std::string_view commit = COHORT_BUILD_COMMIT; !commit.empty()) text += ", commit " + std::string(commit);
  if (!with.empty()) text += ", with " + with;
  if (!without.empty()) text += ", without " + without;
  return text;
}

}  // namespace cohort::runtime
