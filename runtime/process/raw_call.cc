#include "cohort/runtime/process/raw_call.h"

#include <unistd.h>

#include <cerrno>

// NOLINTBEGIN(google-runtime-int): the types of system calls
namespace cohort::runtime {

long RawCall(long number, long a, long b, long c, long d) {
#if defined(__x86_64__)
  long result = number;
  register long fourth asm("r10") = d;
  asm volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
  return result;
#else
  const int before = errno;
  const long result = ::syscall(number, a, b, c, d);
  const long error = -errno;
  errno = before;
  return result < 0 ? error : result;
#endif
}

}  // namespace cohort::runtime
// NOLINTEND(google-runtime-int)
