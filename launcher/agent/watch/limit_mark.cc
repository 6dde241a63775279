#include "cohort/launcher/agent/watch/limit_mark.h"

#include <cstdint>

namespace cohort::launcher {

rlim_t LimitMark(const std::string& mark) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char letter : mark) hash = (hash ^ static_cast<uint8_t>(letter)) * 1099511628211u;
  return (rlim_t{1} << 62) + (hash & ((uint64_t{1} << 48) - 1));
}

std::optional<rlimit> LimitWithMark(rlim_t mark) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_RTTIME, &limit) != 0 || limit.rlim_max < mark) return std::nullopt;
  limit.rlim_cur = mark;
  return limit;
}

bool HasLimitMark(pid_t pid, rlim_t mark) {
  rlimit limit{};
  return ::prlimit(pid, RLIMIT_RTTIME, nullptr, &limit) == 0 && limit.rlim_cur == mark;
}

}  // namespace cohort::launcher
