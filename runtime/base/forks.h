// How often this process was forked: what is shared with other processes must not be used by a child that has
// inherited it.
#pragma once

#include <atomic>
#include <cstdint>

namespace cohort::runtime {

// The number of forks between the first call in an ancestor and this process. Counted in the child; a relaxed load is
// enough, since only fork itself changes it.
const std::atomic<uint64_t>& Forks();

}  // namespace cohort::runtime
