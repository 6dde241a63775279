// Whether a sanitizer slows this program down: tests whose point is a time of microseconds then skip.
#pragma once

namespace cohort::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace cohort::testing
