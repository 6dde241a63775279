// The part of the runner that reaches for other ranks' memory: the steps of plans with kOpen (plan.h), over the group's
// fan-out and its MemoryAccess.
//
// kOpen: every rank publishes one line that names its buffers and says whether it can reach private memory of all
// others. From all of these lines each member draws the same conclusion: the plan is carried out, or it is given up
// (`diverted`), where members can't reach each other's memory or messages would be quicker, and another plan is run
// instead, before any user memory was touched.
// kFold: piece by piece, inside Enter and Leave: sources that lie in mapped memory are read where they lie, others
// fetched into staging memory; targets in mapped memory are stored to, others written through the kernel.
// kMeet: every rank publishes an empty line and waits for those of all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/comm/plan/plan.h"
#include "cohort/comm/run/plan_binding.h"
#include "cohort/comm/transport/memory_access.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm {

class DirectSteps {
 public:
  DirectSteps(int rank, int size);

  // A new operation; the arguments outlive it.
  void Start(const Plan& plan, const PlanBinding& binding, std::byte* const* buffers);
  // Moves the step on, boundedly. `fanout` may be null: there is none. kDone: go to the next step, or, when diverted(),
  // give the plan up. kFailed: see failure().
  Progress Run(const Step& step, Fanout* fanout);
  bool diverted() const { return diverted_; }
  RunnerFailure& failure() { return failure_; }
  // Adds the group ranks that the current step waits for.
  void AddWaitingFor(std::vector<int>* ranks) const;

 private:
  // A rank's message about itself at kOpen.
  struct Announcement {
    MemoryName in;
    MemoryName out;
    uint64_t reaches_private = 0;
  };
  // One operand of a fold.
  struct Operand {
    int rank = 0;
    std::byte* data = nullptr;  // where it lies in this process; null: private memory of another rank, at
    uint64_t address = 0;
    bool streamed = false;  // a target that is stored past the cache
  };
  enum class Phase : uint8_t { kNew, kReceiving, kFolding };

  Progress Open(Fanout* fanout);
  Progress Exchange(Fanout* fanout, bool announce);
  Progress Decide(MemoryAccess& memory);
  Progress RunFold(const Step& step);
  Progress FoldPiece(const Step& step, size_t at, size_t bytes);
  bool FetchesFaster() const;
  bool PrepareFold(const Step& step);
  void ChooseStores();
  Progress Fail(absl::Status status, int peer);

  size_t BytesOf(BufferId buffer, int rank) const;
  size_t BytesOf(const Step& fold) const;  // of each operand
  Operand OperandOf(const RankSlice& slice) const;
  int PeerAfter(int count) const { return (rank_ + 1 + count) % size_; }

  const int rank_;
  const int size_;
  const size_t near_bytes_;  // what the caches near a CPU keep
  const Plan* plan_ = nullptr;
  const PlanBinding* binding_ = nullptr;
  std::byte* const* buffers_ = nullptr;
  MemoryAccess* memory_ = nullptr;

  Phase phase_ = Phase::kNew;
  bool diverted_ = false;
  int received_ = 0;      // peers whose line of the current open or meet has come, in their order from rank + 1 on
  int waiting_for_ = -1;  // whose endpoint is missing
  bool published_ = false;
  SendOperation send_;
  RecvOperation receive_;
  Announcement own_;
  std::vector<Announcement> announced_;  // by rank
  std::vector<std::byte*> in_, out_;     // by rank: where their buffers lie here, or null
  size_t touched_ = 0;                   // bytes that this rank reads and writes in the whole plan

  // The fold under way.
  size_t moved_ = 0;  // bytes
  size_t total_ = 0;
  size_t piece_ = 0;
  std::vector<Operand> sources_, targets_;  // targets: mapped and cached, mapped and streamed, private
  std::vector<const void*> ins_;
  std::vector<void*> outs_;
  std::unique_ptr<std::byte[]> staging_;
  size_t staging_bytes_ = 0;

  RunnerFailure failure_;
};

}  // namespace cohort::comm
