#include "cohort/comm/transport/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cohort::comm {

void StreamCopy(std::byte* to, const std::byte* from, size_t n) {
#if defined(__x86_64__)
  // Whole lines only: part of a line that bypasses the cache costs a read of the memory behind it.
  const size_t head = -reinterpret_cast<uintptr_t>(to) & 63;
  if (n < head + 64) {
    std::memcpy(to, from, n);
    return;
  }
  std::memcpy(to, from, head);
  to += head;
  from += head;
  n -= head;
  for (; n >= 64; n -= 64, to += 64, from += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
#endif
  std::memcpy(to, from, n);
}

}  // namespace cohort::comm
