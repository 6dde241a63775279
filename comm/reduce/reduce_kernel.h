// The function that combines two arrays of elements.
#pragma once

#include <cstddef>

namespace cohort::comm {

// Sets dst[i] = a[i] op b[i] for `count` elements. dst may equal a or b. Pure. FindReduceKernel gives those of this
// build.
using ReduceKernel = void (*)(void* dst, const void* a, const void* b, size_t count);

}  // namespace cohort::comm
