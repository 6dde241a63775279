// PassCourse: the forward and backward passes of a sharded model. It begins, ends and fails them, and knows which of
// them other ranks wait for.
//
//   kNone ─┬─ a forward pass begins ──────────► kEvaluation, kForward, kAwaited ──┐
//          ├─ other ranks run forward ────────► kAnswering ───────────────────────┤ a hook of a backward pass
//          └─ a unit has run by itself ───────────────────────────────────────────┴──► kAlone, kShared
//   kAwaited ── no backward pass comes to it ─► kForward
//   each of them ── it is over, has failed, or was cleared up ─► kNone
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cohort/runtime/ranges.h"
#include "cohort/trainer/autograd/backward_pass.h"

namespace cohort::trainer {

struct FsdpParts;

// Not thread-safe: the caller holds the lock of the parts, which outlive this.
class PassCourse {
 public:
  enum class State {
    kNone,        // no forward pass since the last backward pass
    kEvaluation,  // the last forward pass recorded no graph
    kForward,     // the last forward pass may get a backward pass that the other ranks do not count on
    kAwaited,     // it is one whose gradients all ranks average: others may be in its backward pass already
    kAnswering,   // this rank has no inputs; the others run forward, and have not reduced since
    kAlone,       // a backward pass has begun that sends nothing: its exception concerns this rank alone
    kShared,      // a backward pass has begun whose collectives the other ranks take part in
  };

  explicit PassCourse(FsdpParts& parts);

  // A forward pass of the whole model begins. Collective where ranks may have gone apart in the last pass, and for the
  // first that averages. Throws DistributedError, and c10::Error within a backward pass of the model.
  void BeginForward(bool training);
  // The forward pass is over, for traces.
  void EndForward();
  // No backward pass comes to the last forward pass: it was given up, or its outputs need none.
  void ExpectNoBackward();
  // This rank's inputs are over. Collective where ranks may have gone apart; throws DistributedError if they have.
  void EndInputs();
  // Called by each hook of a backward pass, the first of which begins it. Returns whether it was that one. `at_end` as
  // BackwardPass::Begin's; it calls Finish.
  bool BeginBackward(std::function<void()> at_end);
  // The backward pass has brought all gradients. The shards get their averages.
  void Finish();
  // Ends the pass here and on the other ranks, which wait for what this one won't send.
  void Fail(const std::string& why);
  // Prepares for a pass, whatever the last one left.
  void StartOver();
  // Other ranks run forward, `active` of them, and this one has no inputs.
  void BeginAnswers(bool training, int active);
  // They reduce. Loops zero gradients before each backward pass that averages; nobody does here.
  void BeforeAnsweredReduction();
  // Throws DistributedError where replicas started from different values. Once, before gradients are first averaged.
  void CompareReplicas();

  // A backward pass has begun and not ended. Unless it goes on, an exception has ended it.
  bool in_backward() const { return state_ == State::kAlone || state_ == State::kShared; }
  // Units that run now are runs that backward goes through.
  bool counts_runs() const { return state_ != State::kEvaluation && !in_backward(); }
  // Backward passes average; with no_sync they accumulate.
  bool averages() const { return averages_; }
  void set_averages(bool averages) { averages_ = averages; }
  // A rank's gradient is multiplied by it.
  double share() const { return share_; }

 private:
  static bool MayFollow(State from, State to);
  void Enter(State next);
  void MissBackward();
  void AgreeOrFail(const std::string& message);
  void set_share(int ranks);

  FsdpParts& parts_;
  State state_ = State::kNone;
  BackwardPass backward_;
  double share_;
  bool averages_ = true;
  bool compared_ = false;                // replicas
  std::optional<runtime::Range> shown_;  // the pass under way, in traces
};

}  // namespace cohort::trainer
