// Whatever text stands for a tuning table: no crash, and what was read is printed so that it reads back as the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cohort/comm/select/tuning.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tuning = cohort::comm::Tuning::Parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!tuning.ok()) return 0;
  const auto again = cohort::comm::Tuning::Parse(tuning->ToString());
  if (!again.ok() || again->Hash() != tuning->Hash()) std::abort();
  return 0;
}
