#include "cohort/launcher/agent/watch/limit_mark.h"

#include <cstdint>

namespace cohort::launcher {
namespace {

constexpr int kHashBits = 48;
constexpr uint64_t kMaxRanks = (uint64_t{1} << 14) - 1;  // 0 in the bits between: no rank is named
constexpr rlim_t kRankBits = rlim_t{kMaxRanks} << kHashBits;

std::optional<rlim_t> LimitOf(pid_t pid) {
  rlimit limit{};
  if (::prlimit(pid, RLIMIT_RTTIME, nullptr, &limit) != 0) return std::nullopt;
  return limit.rlim_cur;
}

}  // namespace

rlim_t LimitMark(const std::string& mark) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char letter : mark) hash = (hash ^ static_cast<uint8_t>(letter)) * 1099511628211u;
  return (rlim_t{1} << 62) + (hash & ((uint64_t{1} << kHashBits) - 1));
}

rlim_t LimitMark(const std::string& mark, int local_rank) {
  return LimitMark(mark) + ((static_cast<uint64_t>(local_rank) % kMaxRanks + 1) << kHashBits);
}

std::string MarkIn(const std::vector<std::string>& environment) {
  for (const std::string& variable : environment) {
    if (variable.starts_with("COHORT_AGENT=")) return variable;
  }
  return "";
}

std::optional<rlimit> LimitWithMark(rlim_t mark) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_RTTIME, &limit) != 0 || limit.rlim_max < mark) return std::nullopt;
  limit.rlim_cur = mark;
  return limit;
}

bool HasLimitMark(pid_t pid, rlim_t mark) {
  const std::optional<rlim_t> limit = LimitOf(pid);
  return limit.has_value() && (*limit & ~kRankBits) == mark;
}

std::optional<int> MarkedRank(pid_t pid, rlim_t mark) {
  const std::optional<rlim_t> limit = LimitOf(pid);
  if (!limit.has_value() || (*limit & ~kRankBits) != mark || *limit == mark) return std::nullopt;
  return static_cast<int>((*limit & kRankBits) >> kHashBits) - 1;
}

}  // namespace cohort::launcher
