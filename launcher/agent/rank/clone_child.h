// Starts processes without copying the agent's page tables: the child shares the memory until it executes its program
// (clone3 with CLONE_VM), on a stack of its own. The parent goes on at once. So 64 ranks look for their programs on all
// CPUs while the agent prepares the next ones, and a slow file system holds nobody up.
//
//   parent    clone3 ──► prepares the next child, clone3 ──►
//   child        └─► system calls on its own stack ─► exec: gives the stack back
//
// The child also shares the parent's errno and everything else that belongs to a thread. It makes its system calls by
// runtime::RawCall.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>

namespace cohort::launcher {

// The work of a child. Nobody else may change what it points to while it lives.
class ChildWork {
 public:
  virtual ~ChildWork() = default;
  // In the child, which shares the parent's memory and whose signals are blocked: only runtime::RawCall, and nothing
  // that the parent could find changed. Executes a program or ends, by RawCall as well.
  [[noreturn]] virtual void Run() const = 0;
};

// Starts `work` in a new process, in that cgroup where it is not -1. Never waits for it. The parent-death signal of the
// child comes when the calling thread ends. `work` is kept until the child has executed its program or ended, and the
// next child is started or ReleaseExecuted is called. Call both from one thread.
//
// Nothing where this is not possible: on other processors than x86-64, under a sanitizer, on kernels without clone3, or
// without memory. The caller then forks.
std::optional<pid_t> StartByClone(std::shared_ptr<const ChildWork> work, int cgroup);

// Frees the stacks and the works of children that have executed their program or ended. Returns how many have not.
size_t ReleaseExecuted();

}  // namespace cohort::launcher
