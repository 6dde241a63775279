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

// Used by one thread.
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

  // Goes on with the communicators whose members are not known. Blocks until the deadline at most; what the agent has
  // not answered by then is asked again the next time.
  void Continue(runtime::Deadline deadline);

 private:
  //   kSay ──► rank 0: kCollect ──► kPublish ──► the list is known
  //     └────► others: kAwaitList ──────────────────┘           any ──► kGivenUp
  enum class Step : uint8_t { kSay, kCollect, kPublish, kAwaitList, kGivenUp };
  struct Search {
    Step step = Step::kSay;
    int next = 0;                  // rank to ask for
    std::vector<int> world_ranks;  // of those before
    Clock::time_point begun;
    Clock::time_point due;
    std::chrono::milliseconds interval{20};
  };

  void Continue(const NcclRecorder::Unresolved& communicator, Search* search, runtime::Deadline deadline);
  // Says who this rank is.
  void Say(const CommunicatorFacts& facts, Search* search, runtime::Deadline deadline);
  // Asks for the ranks one after the other.
  void Collect(const CommunicatorFacts& facts, int size, Search* search, runtime::Deadline deadline);
  void Publish(const NcclRecorder::Unresolved& communicator, Search* search, runtime::Deadline deadline);
  void AwaitList(const NcclRecorder::Unresolved& communicator, Search* search, runtime::Deadline deadline);
  static void Later(Search* search);

  runtime::Bootstrap& bootstrap_;
  const runtime::Identity& identity_;
  NcclRecorder& recorder_;
  std::map<uint64_t, Search> searches_;  // by communicator
  int lists_ = 0;
};

}  // namespace cohort::comm::nccl_profiler
