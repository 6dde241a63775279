#include "cohort/launcher/nodes/surroundings/variables.h"

#include <limits>

#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/whole_number.h"

namespace cohort::launcher {

std::string ValueOf(const VariableLookup& variable, const char* name) { return variable(name).value_or(""); }

std::optional<int> NumberOf(const VariableLookup& variable, const char* name) {
  return ReadWholeNumber(ValueOf(variable, name), 0, std::numeric_limits<int>::max());
}

std::string Says(const VariableLookup& variable, const char* name) {
  constexpr size_t kShown = 80;  // bytes of the value
  return std::string(name) + "=" + Printable(ValueOf(variable, name), kShown);
}

}  // namespace cohort::launcher
