// COHORT_CHECK: for our own mistakes only, never for what a user or a peer can send.
#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the process with the condition and its place when `condition` is false.
#define COHORT_CHECK(condition)                                                                               \
  do {                                                                                                        \
    if (!(condition)) [[unlikely]] {                                                                          \
      std::fprintf(stderr, "cohort: internal error: %s is false at %s:%d\n", #condition, __FILE__, __LINE__); \
      std::abort();                                                                                           \
    }                                                                                                         \
  } while (false)
