// Gets values from the job's key-value store without stopping the engine: the store's calls block, so a thread of the
// lookup's own makes them.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm::nccl {

class StoreLookup {
 public:
  // Starts to get the keys, one after the other, until one can't be had or the deadline has passed. `wake` is called
  // after each, on the lookup's thread; it must not block. `runtime` outlives this.
  StoreLookup(runtime::Runtime* runtime, std::vector<std::string> keys, runtime::Deadline deadline,
              std::function<void()> wake);
  // Waits for a call to the store that is under way: at most 200 ms.
  ~StoreLookup();
  StoreLookup(const StoreLookup&) = delete;
  StoreLookup& operator=(const StoreLookup&) = delete;

  // Whether there is an answer for the i-th key. Any thread.
  bool Has(size_t i) const { return answers_.load(std::memory_order_acquire) > i; }
  // The value, or why the store can't be asked. Has(i).
  const absl::StatusOr<std::string>& Get(size_t i) const { return values_[i]; }

 private:
  void Run();
  bool Pause();

  runtime::Runtime* const runtime_;
  const std::vector<std::string> keys_;
  const runtime::Deadline deadline_;
  const std::function<void()> wake_;
  std::vector<absl::StatusOr<std::string>> values_;  // the first answers_ belong to everybody, the others to the thread
  std::atomic<size_t> answers_{0};
  runtime::Mutex mutex_;
  runtime::CondVar stopped_;
  bool stop_ COHORT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cohort::comm::nccl
