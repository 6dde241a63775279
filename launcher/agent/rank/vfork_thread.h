// Starts processes without copying the agent's page tables: the child shares the memory until it executes its program
// (clone3 with CLONE_VM and CLONE_VFORK). The caller of that is suspended meanwhile, for as long as a file system takes
// to find the program, so a thread of its own does it. Starting 64 ranks takes half of the CPU time that it takes with
// fork.
//
//   main thread    Start ──► waits for the end of exec, a quarter of a second at most ──► pid
//   vfork thread   clone3 ─── suspended ──────────────┐ ready for the next
//   child              └─► on a stack of its own ─ exec
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>

namespace cohort::launcher {

// The work of a child. Nobody else may change what it points to while it lives.
class ChildWork {
 public:
  virtual ~ChildWork() = default;
  // In the child, which shares the parent's memory and whose signals are blocked: only system calls, and nothing that
  // the parent could miss or find changed. Executes a program or ends.
  [[noreturn]] virtual void Run() const = 0;
};

// Starts `work` in a new process, in that cgroup where it is not -1. The parent-death signal of the child comes when
// this process ends. `work` is kept until the child has executed its program or ended. Call it from one thread.
//
// Nothing where this is not possible: on other processors than x86-64, under a sanitizer, on kernels without clone3,
// or while an earlier child still looks for its program. The caller then forks.
std::optional<pid_t> StartByVfork(const std::shared_ptr<const ChildWork>& work, int cgroup);

}  // namespace cohort::launcher
