// PeerWatch: a thread that sleeps until one of this node's processes ends.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/process/process_watch.h"

namespace cohort::runtime {

class PeerWatch {
 public:
  // Called by the watching thread when peer `index` has ended; `cause` is "killed by SIGKILL", "exited with status 1",
  // or "ended" where the kernel does not say how.
  using OnEnd = std::function<void(int index, const std::string& cause)>;

  ~PeerWatch();
  // Watches the processes `pids` (0: none at this index). A process that is gone already counts as ended. kInternal
  // without a descriptor for the thread's own use.
  absl::Status Start(const std::vector<int>& pids, OnEnd on_end);
  void Stop();

 private:
  void Main();

  std::vector<int> pids_;  // 0: none, or told of
  std::vector<ProcessWatch> watches_;
  FileDescriptor stop_;
  OnEnd on_end_;
  std::thread thread_;
};

// True when the process is exiting or has exited, which its /proc stat says long before its pidfd when it has much
// memory to give back.
bool IsExiting(int pid);

}  // namespace cohort::runtime
