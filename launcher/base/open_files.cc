#include "launcher/base/open_files.h"

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

}  // namespace cohort::launcher
