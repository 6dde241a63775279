// Processes that have become this one's children because their parents ended: of the first process of a container (or
// of its pid namespace) every orphan there, such as what a probe or `kubectl exec` has left behind.
#pragma once

#include <sys/types.h>

#include <functional>

namespace cohort::launcher {

// Reaps the dead children of which `is_known` says false; those of which it says true are left for who waits for them.
// Does not block. Call after SIGCHLD, when the known ones that were dead have been reaped: it stops at the first of
// them, which sends a SIGCHLD of its own.
void ReapOrphans(const std::function<bool(pid_t)>& is_known);

}  // namespace cohort::launcher
