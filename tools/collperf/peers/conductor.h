// All systems of one transport and number of ranks, started once and commanded in turn.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/collperf/options.h"
#include "tools/collperf/peers/system_list.h"
#include "tools/measure/session_memory.h"
#include "tools/measure/shared_memory.h"

namespace cohort::collperf {

// Makes every conductor end what it is at: for signal handlers.
void RequestStop();
bool StopRequested();

class Conductor {
 public:
  // Starts every system and waits for its ranks. A system that does not come up is left out; its reason is printed.
  // kFailedPrecondition where ours does not, kCancelled where a stop was requested.
  static absl::StatusOr<std::unique_ptr<Conductor>> Start(Transport transport, int ranks, const Options& options);
  ~Conductor();
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;

  int ranks() const { return ranks_; }
  // Lines for the output: the settings of each system, and which peers are left out, why, and how to get them.
  const std::string& notes() const { return notes_; }
  // By slot, ours first.
  int systems() const { return static_cast<int>(starts_.size()); }
  const SystemEntry& SystemAt(int slot) const { return *starts_[static_cast<size_t>(slot)].system; }
  bool alive(int slot) const { return started_[static_cast<size_t>(slot)].alive; }

  // Gives the system a command and waits for all of its ranks. After an error the system is no longer alive. The error
  // is printed, unless it is kCancelled: a stop was requested.
  absl::Status Give(int slot, const measure::Command& command);
  measure::SystemSlot& Shared(int slot) { return memory()->slots[slot]; }
  // The slowest rank's time of each of the latest timed calls, in microseconds.
  std::vector<double> Samples(int slot, int calls);

 private:
  struct Started {
    std::vector<pid_t> pids;
    bool alive = false;
  };
  Conductor() = default;
  measure::SessionMemory* memory() { return static_cast<measure::SessionMemory*>(memory_->data()); }
  absl::Status Launch(int slot);
  absl::Status Await(int slot, uint32_t answers, std::chrono::seconds patience);
  void GiveUp(int slot, const absl::Status& status);
  size_t ProcessesEnded(int slot);
  std::string LogOf(int slot) const { return folder_ + "/" + std::to_string(slot) + ".log"; }

  int ranks_ = 0;
  std::string notes_;
  std::string folder_;
  std::unique_ptr<measure::SharedMemory> memory_;
  std::vector<StartPlan> starts_;
  std::vector<Started> started_;
};

}  // namespace cohort::collperf
