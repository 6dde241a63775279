// Finds what is no finite number in memory: NaN and infinity.
#pragma once

#include <cstddef>

#include "cohort/comm/types.h"

namespace cohort::comm {

// Whether all elements are finite, as fast as memory is read. Integers always are. Memory of any alignment.
bool AllFinite(DataType dtype, const void* data, size_t count);

struct NonFinite {
  size_t first = 0;  // its index
  bool first_is_nan = false;
  size_t nans = 0;
  size_t infinities = 0;
};
// Element by element: for memory of which AllFinite says that some are not.
NonFinite CountNonFinite(DataType dtype, const void* data, size_t count);

}  // namespace cohort::comm
