// Copies past the cache, for data that this CPU will not read soon.
#pragma once

#include <cstddef>

namespace cohort::comm {

// memcpy whose stores bypass the cache where the machine can; they are ordered before what follows.
void StreamCopy(std::byte* to, const std::byte* from, size_t n);

}  // namespace cohort::comm
