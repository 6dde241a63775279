// Version and features of cohort.h.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "cohort/comm/c/cohort.h"

int32_t cohort_c_version(void) { return 10000 * COHORT_C_MAJOR + COHORT_C_MINOR; }

const char* cohort_version(void) { return COHORT_VERSION; }

int32_t cohort_has_feature(const char* name) {
  static constexpr std::string_view kFeatures[] = {"batch",           "blocks",          "send_receive", "store",
                                                   "user_reductions", "variable_counts", "window"};
  if (name == nullptr) return 0;
  const std::string_view wanted = name;
  if (wanted == "device_memory") return COHORT_C_DEVICE_MEMORY;
  return std::find(std::begin(kFeatures), std::end(kFeatures), wanted) != std::end(kFeatures) ? 1 : 0;
}
