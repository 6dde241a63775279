// Processes that have become this one's children because their parents ended. The first process of a container (or of
// its pid namespace) gets every orphan there, such as those left by a probe or `kubectl exec`.
#pragma once

#include <sys/types.h>

#include <functional>

namespace cohort::launcher {

// Reaps dead children for which `is_known` returns false. Children for which it returns true are left for their
// waiters. Does not block. Call it after SIGCHLD, when known dead children have been reaped: it stops at the first of
// them, which sends a SIGCHLD of its own.
void ReapOrphans(const std::function<bool(pid_t)>& is_known);

}  // namespace cohort::launcher
