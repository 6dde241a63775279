// Finds out which ranks of the job the ranks of NCCL's communicators are. NCCL tells a plug-in its own place alone.
// Each rank says in the job's variables who it is; rank 0 of the communicator collects that and puts the list into the
// store.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/comm/nccl/profiler/nccl_recorder.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::comm::nccl_profiler {

// Used by one thread, which it blocks for a short time.
class CommunicatorMembers {
 public:
  using Clock = std::chrono::steady_clock;
  // Ranks that have not said who they are by then count as unknown.
  static constexpr std::chrono::seconds kCollectFor{10};
  static constexpr std::chrono::seconds kAwaitListFor{60};
  static constexpr int kMostRanks = 12 << 10;  // of a communicator; the list is one value of the store
  static constexpr int kMostLists = 64;        // that this process puts there: they stay as long as the job

  // All outlive it.
  CommunicatorMembers(runtime::Bootstrap* bootstrap, const runtime::Identity* identity, NcclRecorder* recorder)
      : bootstrap_(*bootstrap), identity_(*identity), recorder_(*recorder) {}

  // Goes on with the communicators whose members are not known. Blocks for about kSlice, or as long as the agent needs
  // for an answer, which is at most kPatience.
  void Continue();

  static constexpr std::chrono::milliseconds kSlice{50};
  static constexpr std::chrono::milliseconds kPatience{2000};

 private:
  struct Search {
    bool said = false;  // who this rank is
    bool given_up = false;
    int next = 0;                  // rank to ask for
    std::vector<int> world_ranks;  // of those before
    Clock::time_point begun;
    Clock::time_point due;
    std::chrono::milliseconds interval{20};
  };

  void Continue(const NcclRecorder::Unresolved& communicator, Search* search);
  // Asks for the ranks one after the other. True when all were asked for.
  bool Collect(const CommunicatorFacts& facts, int size, Search* search);
  void Publish(const NcclRecorder::Unresolved& communicator, Search* search);
  void AwaitList(const NcclRecorder::Unresolved& communicator, Search* search);
  static void Later(Search* search);

  runtime::Bootstrap& bootstrap_;
  const runtime::Identity& identity_;
  NcclRecorder& recorder_;
  std::map<uint64_t, Search> searches_;  // by communicator
  int lists_ = 0;
};

}  // namespace cohort::comm::nccl_profiler
