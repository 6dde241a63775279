#include "cohort/launcher/base/open_files.h"

#include <algorithm>
#include <optional>

namespace cohort::launcher {
namespace {

std::optional<rlimit> users;  // since it was raised

rlimit OwnLimit() {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

}  // namespace

void RaiseOpenFileLimit() {
  const rlimit before = OwnLimit();
  const rlimit raised{before.rlim_max, before.rlim_max};
  if (before.rlim_cur != before.rlim_max && ::setrlimit(RLIMIT_NOFILE, &raised) == 0 && !users) users = before;
}

rlimit UsersOpenFileLimit() { return users.value_or(OwnLimit()); }

size_t PlacesForStrangers(size_t wanted, size_t expected) {
  const rlim_t files = OwnLimit().rlim_cur;
  if (files == RLIM_INFINITY) return wanted;
  const size_t all_at_once = std::min<size_t>(expected, files / 4);
  return std::min(wanted, std::max<size_t>({1, all_at_once, files / 8}));
}

}  // namespace cohort::launcher
