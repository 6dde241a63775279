// Which sanitizer this is compiled under, as 0 or 1: for the few places that it can't follow, or slows down too much.
#pragma once

#if defined(__has_feature)
#define COHORT_HAS_FEATURE(name) __has_feature(name)
#else
#define COHORT_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || COHORT_HAS_FEATURE(thread_sanitizer)
#define COHORT_THREAD_SANITIZER 1
#else
#define COHORT_THREAD_SANITIZER 0
#endif

#if defined(__SANITIZE_ADDRESS__) || COHORT_HAS_FEATURE(address_sanitizer)
#define COHORT_ADDRESS_SANITIZER 1
#else
#define COHORT_ADDRESS_SANITIZER 0
#endif
