// A fold that stores some of its outputs through the cache and others past it.
#pragma once

#include <cstddef>
#include <span>

#include "cohort/comm/reduce/reduce.h"

namespace cohort::comm {

// outs[j][i] = ins[0][i] op ins[1][i] op ..., for all j and `count` elements i; one input: a copy. An output may be one
// of the inputs (the same pointer); other overlaps are not allowed. The call changes the pointers.
struct PlacedFoldCall {
  std::span<const void*> ins;
  std::span<void*> outs;
  // Number of outputs, from the first, that are stored through the cache. The others go past it where the CPU can
  // (non-temporal), which pays for memory that is neither in a cache nor read soon. These stores are ordered before
  // everything that follows.
  size_t cached = 0;
  size_t count = 0;
  size_t element_bytes = 1;
  FoldKernel kernel = nullptr;  // for two inputs or more
};
void PlacedFold(const PlacedFoldCall& call);

}  // namespace cohort::comm
