// A system call as the kernel sees it.
#pragma once

namespace cohort::runtime {

// Leaves errno alone, so that a child may call it that shares its parent's memory. Returns the result, or the negative
// error.
long RawCall(long number, long a = 0, long b = 0, long c = 0, long d = 0);  // NOLINT(google-runtime-int): its type

inline long RawArgument(const void* pointer) { return reinterpret_cast<long>(pointer); }  // NOLINT(google-runtime-int)

}  // namespace cohort::runtime
