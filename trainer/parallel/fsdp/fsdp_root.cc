#include "cohort/trainer/parallel/fsdp/fsdp_root.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/parallel/fsdp/fsdp_parts.h"
#include "cohort/trainer/parallel/fsdp/fsdp_stage.h"
#include "cohort/trainer/parallel/fsdp/pass_course.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

bool MayGoBackward(const std::vector<at::Tensor>& outputs) {
  return std::any_of(outputs.begin(), outputs.end(),
                     [](const at::Tensor& output) { return output.defined() && output.requires_grad(); });
}

// A pass would take the whole parameters away, and what was changed in them.
void RefuseWhileSummoned(bool summoned, const char* pass) {
  TORCH_CHECK(!summoned, "FullyShardedDataParallel: a ", pass,
              " pass under SummonFullParams, where parameters are whole and may have changed; run it after that");
}

// Reshards units that backward is through with when it comes to `next`. Nodes of a graph run against the order in
// which they were made: those of a unit have run when backward comes to a unit that was over before it. (Not yet when
// that is within the unit, or around it.)
void ReshardPassed(std::vector<FsdpUnit*>& passing, const FsdpUnit& next, UnitGatherer& gatherer) {
  const auto passed = [&](FsdpUnit* unit) {
    return next.runs().ended_before(unit->runs()) && unit->has_all_gradients();
  };
  for (FsdpUnit* unit : passing) {
    if (passed(unit)) gatherer.Reshard(*unit);
  }
  std::erase_if(passing, passed);
}

}  // namespace

FsdpRoot::FsdpRoot(std::vector<std::shared_ptr<FsdpUnit>> units, comm::Communicator& world, comm::Communicator& shard,
                   comm::Communicator* replicate)
    : replicate_(replicate),
      parts_(std::make_unique<FsdpParts>(std::move(units), world, shard, replicate)),
      passes_(std::make_unique<PassCourse>(*parts_)),
      stage_(std::make_unique<FsdpStage>(*this, *parts_, *passes_)) {
  for (size_t i = 0; i < parts_->units.size(); ++i) parts_->units[i]->set_number(static_cast<int>(i));
}

FsdpRoot::~FsdpRoot() {
  // Units go later, and may have been gathering ahead.
  for (comm::Communicator* group : parts_->groups.All()) NoteGroupEnd(*group);
  // An exception of the user's has ended a pass, here or in Join: the other ranks wait for what this one won't send.
  if (passes_->in_backward() || !parts_->reductions.empty()) {
    parts_->groups.Abort("FullyShardedDataParallel was destroyed within a backward pass");
  }
  parts_->reductions.Await();
  parts_->reductions.Drop();
  parts_->groups.CloseWindowGroups();
  for (const auto& unit : parts_->units) unit->LeaveWindows();
}

FsdpStage& FsdpRoot::stage() { return *stage_; }
bool FsdpRoot::sync() const { return passes_->averages(); }
void FsdpRoot::set_sync(bool sync) { passes_->set_averages(sync); }
const std::vector<std::shared_ptr<FsdpUnit>>& FsdpRoot::units() const { return parts_->units; }
comm::Communicator& FsdpRoot::norm_group() const { return parts_->groups.reduce(); }
const FsdpTraffic& FsdpRoot::traffic() const { return parts_->traffic; }

void FsdpRoot::PreForward(FsdpUnit& unit, bool training) {
  runtime::MutexLock lock(parts_->mutex);
  RefuseWhileSummoned(summoned(), "forward");
  if (stage_->under_way()) return stage_->PreForward(unit);
  if (&unit == parts_->units.front().get()) passes_->BeginForward(training);
  // A checkpoint that calls the unit again in backward makes no other run.
  if (passes_->counts_runs()) unit.runs().Begin(++time_);
  parts_->gatherer.Start(unit);
  FsdpUnit* next = unit.options().forward_prefetch ? parts_->order.NextForward(unit) : nullptr;
  if (next != nullptr) parts_->gatherer.Start(*next);
  unit.weights().Finish();
  parts_->order.Add(unit);
  if (at::GradMode::is_enabled()) unit.AddGradientHooks(shared_from_this());
}

void FsdpRoot::PostForward(FsdpUnit& unit, const std::vector<at::Tensor>& outputs) {
  runtime::MutexLock lock(parts_->mutex);
  if (stage_->under_way()) return;
  const bool outermost = &unit == parts_->units.front().get();
  if (outermost) passes_->EndForward();
  // Peers read the shards of units that were gathered ahead and left out; those may be written next.
  for (const auto& each : parts_->units) {
    if (outermost && each->gathering()) parts_->gatherer.Reshard(*each);
  }
  if (passes_->counts_runs()) unit.runs().End(++time_);
  if (!at::GradMode::is_enabled()) return parts_->gatherer.Reshard(unit);
  TORCH_CHECK(!outputs.empty() || !unit.gradients().trainable(),
              "FullyShardedDataParallel: the forward pass of the module with ", unit.parameters().front().name,
              " returned no tensor that can be found, so its backward pass can't be "
              "followed; return tensors, or give its type an overload of AppendTensors (trainer/base/tensors_of.h)");
  if (outermost && !MayGoBackward(outputs)) passes_->ExpectNoBackward();
  if (unit.reshards_after_forward(outermost)) parts_->gatherer.ReshardAfterForward(unit);
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    output.register_hook([weak = weak_from_this(), weak_unit = unit.weak_from_this()](const at::Tensor&) {
      const auto self = weak.lock();
      const auto live = weak_unit.lock();
      if (self != nullptr && live != nullptr) self->PreBackward(*live);
    });
  }
}

// Waits for what was gathered ahead, because peers read the shards that the caller may step next.
void FsdpRoot::AbandonForward(const FsdpUnit& unit) {
  runtime::MutexLock lock(parts_->mutex);
  // The module around an inner unit may catch what was thrown, and go on.
  if (stage_->under_way() || &unit != parts_->units.front().get() || passes_->in_backward()) return;
  for (const auto& each : parts_->units) {
    try {
      parts_->gatherer.Reshard(*each);
    } catch (const c10::Error&) {  // the group has failed: the next collective says so
    }
  }
  // No backward pass will come to these runs, but one may come to those of a forward pass before.
  for (const auto& each : parts_->units) each->runs().Restore();
  passes_->ExpectNoBackward();
  parts_->order.Abandon();
}

void FsdpRoot::PreBackward(FsdpUnit& unit) {
  runtime::MutexLock lock(parts_->mutex);
  RefuseWhileSummoned(summoned(), "backward");
  try {
    const bool begins = passes_->BeginBackward([weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        runtime::MutexLock lock(self->parts_->mutex);
        self->passes_->Finish();
      }
    });
    if (begins) passing_.clear();
    ReshardPassed(passing_, unit, parts_->gatherer);
    parts_->gatherer.Start(unit);
    if (unit.options().backward_prefetch == BackwardPrefetch::kBackwardPre) {
      FsdpUnit* next = parts_->order.NextBackward(unit);
      // A unit that backward has reached is done, or has its parameters.
      if (next != nullptr && !next->gradients().begun()) parts_->gatherer.Start(*next);
    }
    unit.weights().Finish();
    unit.AddGradientHooks(shared_from_this());  // a checkpointed function builds its graph only now
    unit.gradients().Begin();
    if (unit.gradients().frozen_in_part()) passing_.push_back(&unit);
  } catch (...) {
    passes_->Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpRoot::OnGradient(FsdpUnit& unit, int parameter) {
  runtime::MutexLock lock(parts_->mutex);
  if (stage_->under_way()) return stage_->OnGradient(unit, parameter);
  if (!passes_->in_backward()) return;  // failed before
  try {
    unit.gradients().Take(parameter, passes_->share());
    if (!unit.has_all_gradients()) return;
    if (!unit.gradients().frozen_in_part()) {
      if (unit.weights().borrowed()) {
        passing_.push_back(&unit);
      } else {
        parts_->gatherer.Reshard(unit);
      }
    }
    if (passes_->averages()) parts_->reductions.LaunchReady();
  } catch (...) {
    passes_->Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpRoot::set_join(Join* join, Joinable* joinable) {
  runtime::MutexLock lock(parts_->mutex);
  parts_->calls.Set(join, joinable);
}

void FsdpRoot::EndInputs() {
  runtime::MutexLock lock(parts_->mutex);
  passes_->EndInputs();
}

std::string FsdpRoot::NameOf(int call) const { return parts_->calls.NameOf(call); }

void FsdpRoot::Shadow(int call, int active) {
  runtime::MutexLock lock(parts_->mutex);
  try {
    const auto [step, unit] = parts_->calls.Read(call);
    switch (step) {
      case JoinCalls::Step::kForward:
      case JoinCalls::Step::kTrainingForward:
        return passes_->BeginAnswers(/*training=*/step == JoinCalls::Step::kTrainingForward, active);
      case JoinCalls::Step::kGather:
        parts_->gatherer.Reshard(unit);  // forgets what an earlier forward left
        [[fallthrough]];
      case JoinCalls::Step::kGatherKept:
        parts_->gatherer.Start(unit);
        parts_->gatherer.ReshardAfterForward(unit);
        return;
      case JoinCalls::Step::kReduce:
        passes_->BeforeAnsweredReduction();
        // Reduces what this rank's inputs have accumulated under no_sync, or nothing.
        parts_->reductions.Launch(unit);
        return;
      case JoinCalls::Step::kFinish:
        parts_->reductions.Finish();
        for (const auto& each : parts_->units) {
          parts_->gatherer.Reshard(*each);  // forgets what it kept among neighbours: the step makes that old
          each->gradients().Expect();
        }
        return;
    }
  } catch (...) {
    passes_->Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpRoot::Abort(const std::string& why) {
  runtime::MutexLock lock(parts_->mutex);
  passes_->Fail(why);
}

void FsdpRoot::ForgetOrder() {
  runtime::MutexLock lock(parts_->mutex);
  parts_->order.Forget();
  for (const auto& unit : parts_->units) {
    parts_->gatherer.Reshard(*unit);
    unit->runs().Forget();  // ranks that only answered have none
  }
}

void FsdpRoot::UnshardAll() {
  runtime::MutexLock lock(parts_->mutex);
  TORCH_CHECK(parts_->calls.all_have_inputs(),
              "FullyShardedDataParallel: SummonFullParams under Join, where a rank has no inputs (or none has begun an "
              "iteration): that rank has yet to do its step; do it after Join::run");
  for (const auto& unit : parts_->units) {
    // Forgets what an earlier forward pass left or, where it ended in an exception, was gathering: shards may be newer.
    if (!unit->unsharded()) parts_->gatherer.Reshard(*unit);
    parts_->gatherer.Start(*unit);
  }
  for (const auto& unit : parts_->units) unit->weights().Finish();
  ++summoned_;
}

void FsdpRoot::ReshardAll(bool writeback) {
  runtime::MutexLock lock(parts_->mutex);
  --summoned_;
  for (const auto& unit : parts_->units) {
    if (writeback) unit->weights().WriteBack();
    parts_->gatherer.Reshard(*unit);
  }
}

void FsdpRoot::Reshard() {
  runtime::MutexLock lock(parts_->mutex);
  TORCH_CHECK(
      summoned_ == 0,
      "FullyShardedDataParallel: shards are asked for under SummonFullParams, where parameters are whole and may "
      "have changed; save, load and initialise after it");
  parts_->gatherer.ReshardAll();
}

}  // namespace cohort::trainer
