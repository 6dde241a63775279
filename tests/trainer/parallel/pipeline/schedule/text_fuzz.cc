#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cohort/trainer/parallel/pipeline/schedule/checker.h"
#include "cohort/trainer/parallel/pipeline/schedule/text.h"

// Text that is read can be checked, and is printed as text that reads the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto schedule = cohort::trainer::ParseSchedule(text);
  if (!schedule.ok()) return 0;
  (void)cohort::trainer::CheckSchedule(*schedule).ok();
  const auto again = cohort::trainer::ParseSchedule(cohort::trainer::ToText(*schedule));
  if (again.ok() && again->by_rank != schedule->by_rank) std::abort();
  return 0;
}
