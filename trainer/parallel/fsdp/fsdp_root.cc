#include "cohort/trainer/parallel/fsdp/fsdp_root.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "cohort/trainer/transfer/window_pool.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

std::unique_ptr<comm::Communicator> Copy(comm::Communicator& group) {
  auto copy = group.Duplicate();
  ThrowUnlessOk(copy.status(), "making a communicator of FullyShardedDataParallel");
  return *std::move(copy);
}

}  // namespace

FsdpRoot::FsdpRoot(std::vector<std::shared_ptr<FsdpUnit>> units, comm::Communicator& world, comm::Communicator& shard,
                   comm::Communicator* replicate)
    : units_(std::move(units)), shard_(shard), replicate_(replicate) {
  gather_group_ = Copy(shard);
  reduce_group_ = Copy(shard);
  if (replicate != nullptr) replicate_group_ = Copy(*replicate);
  const bool hybrid = replicate != nullptr && replicate->size() > 1 && shard.size() > 1;
  if (hybrid && units_.front()->options().reduce_over_world) world_group_ = Copy(world);
  ranks_ = shard.size() * (replicate == nullptr ? 1 : replicate->size());
  share_ = 1.0 / ranks_;
  MakeNeighbours();
}

FsdpRoot::~FsdpRoot() {
  // Units go later, and may have been gathering ahead.
  for (comm::Communicator* group : OwnGroups()) NoteGroupEnd(*group);
  // An exception of the user's has ended a pass, here or in Join: the other ranks wait for what this one won't send.
  if (backward_ || !reductions_.empty()) AbortGroups("FullyShardedDataParallel was destroyed within a backward pass");
  AwaitReductions();
  reductions_.clear();
  // What is under way is given up, and no peer takes it for done from now on.
  for (auto* group : {&gather_group_, &reduce_group_, &world_group_}) group->reset();
  for (const auto& unit : units_) unit->LeaveWindows();
}

void FsdpRoot::MakeNeighbours() {
  for (const auto& unit : units_) {
    const int count = unit->backward_ranks();
    if (count == 0 || neighbours_.count(count) > 0) continue;
    std::vector<int> ranks(count);
    std::iota(ranks.begin(), ranks.end(), shard_.rank() / count * count);
    auto group = shard_.Subgroup(ranks);
    ThrowUnlessOk(group.status(), "making the neighbours of reshard_after_forward");
    neighbours_[count] = *std::move(group);
  }
}

std::vector<comm::Communicator*> FsdpRoot::OwnGroups() const {
  std::vector<comm::Communicator*> groups;
  for (const auto* group : {&gather_group_, &reduce_group_, &replicate_group_, &world_group_}) {
    if (*group != nullptr) groups.push_back(group->get());
  }
  for (const auto& [ranks, group] : neighbours_) groups.push_back(group.get());
  return groups;
}

void FsdpRoot::StartUnshard(FsdpUnit& unit) {
  if (!unit.sharded()) return;
  const bool kept = unit.kept_numel() > 0;
  if (unit.gathers()) {
    Tell(kept ? Step::kGatherKept : Step::kGather, unit);
    EnterWindows();
  }
  unit.StartUnshard(*gather_group_, kept ? neighbours_.at(unit.backward_ranks()).get() : nullptr, pool_);
  if (!unit.gathers()) return;
  ++traffic_.gathers;
  traffic_.gathered_bytes += unit.gathered_bytes();
}

// Names what differs where ranks have made different models: what their calls would differ in tells only of lengths.
void FsdpRoot::CheckSameUnits() {
  std::vector<std::string> lines;
  for (size_t i = 0; i < units_.size(); ++i) {
    const std::string unit = "unit " + std::to_string(i) + ", ";
    if (units_[i]->parameters().empty()) lines.push_back(unit + "without parameters");
    for (const FsdpParameter& parameter : units_[i]->parameters()) {
      lines.push_back(unit + Describe(parameter, parameter.sizes));
    }
  }
  CheckSameOnAllRanks(*gather_group_, "FullyShardedDataParallel", lines);
}

// Before the first gathering, which all ranks of the shard group do. Room is for what is trainable then: frozen units
// may be most of a model. Where they are thawed after all, their gradients lie in ordinary memory.
void FsdpRoot::EnterWindows() {
  if (std::exchange(in_windows_, true)) return;
  CheckSameUnits();
  size_t bytes = 0;
  for (const auto& unit : units_) bytes = std::max(bytes, unit->trainable() ? unit->flat_gradient_bytes() : 0);
  // Two flat gradients exist at a time, see LaunchReduction.
  const auto trainable =
      std::count_if(units_.begin(), units_.end(), [](const auto& unit) { return unit->trainable(); });
  const auto pool =
      std::make_shared<WindowPool>(*reduce_group_, bytes, static_cast<int>(std::min<int64_t>(2, trainable)));
  for (const auto& unit : units_) unit->EnterWindows(*gather_group_, pool);
}

// A forward pass that no backward pass followed, or one that failed, leaves units gathered, maybe with old values. What
// a backward pass has brought before an exception ended it must not get into the next average; nor what passes before
// it have left in the shards, which have no .grad until then: nobody could have zeroed it.
void FsdpRoot::StartOver() {
  for (const auto& unit : units_) {
    unit->Reshard(pool_);
    if (backward_) unit->DropFlatGradient();
    unit->RestoreShardGradients();
    if (backward_ && concerns_others_) unit->DropShardGradients();
    unit->ExpectAllGradients();
  }
  backward_ = false;
  AwaitReductions();
  reductions_.clear();
  if (!order_.empty()) last_order_ = std::exchange(order_, {});
}

void FsdpRoot::BeginForward() {
  TORCH_CHECK(
      !backward_ || !pass_.goes_on_here(),
      "FullyShardedDataParallel: the whole model runs forward within a backward pass of its own, whose gradients "
      "would be lost. In a hook: run it after backward(). In a checkpointed function: checkpoint all its forward "
      "passes, or blocks within it");
  if (backward_ && concerns_others_) AgreeOnGivingUp();
  int ranks = ranks_;
  if (join_ != nullptr) {
    const JoinIteration iteration = join_->Begin(*joinable_, static_cast<int>(Step::kForward));
    if (!join_->options().divide_by_initial_world_size) ranks = iteration.active_count();
  }
  StartOver();
  set_share(ranks);
  counts_runs_ = at::GradMode::is_enabled();
  for (const auto& unit : units_) unit->KeepRuns();
}

// It would take the whole parameters away, and what was changed in them.
void FsdpRoot::RefuseWhileSummoned(const char* pass) const {
  TORCH_CHECK(summoned_ == 0, "FullyShardedDataParallel: a ", pass,
              " pass under SummonFullParams, where parameters are whole and may have changed; run it after that");
}

void FsdpRoot::PreForward(FsdpUnit& unit) {
  runtime::MutexLock lock(mutex_);
  RefuseWhileSummoned("forward");
  if (outermost(unit)) BeginForward();
  if (counts_runs_ && !backward_) unit.BeginRun(++time_);  // what a checkpoint calls again in backward is no other run
  StartUnshard(unit);
  if (unit.options().forward_prefetch) PrefetchForward(unit);
  unit.FinishUnshard();
  order_.push_back(&unit);
  if (at::GradMode::is_enabled()) unit.AddGradientHooks(shared_from_this());
}

void FsdpRoot::PrefetchForward(const FsdpUnit& unit) {
  const size_t place = order_.size();
  if (place + 1 < last_order_.size() && last_order_[place] == &unit) StartUnshard(*last_order_[place + 1]);
}

// Of units that this forward pass has left out: their shards, which peers read until then, may be written next.
void FsdpRoot::DropPrefetched() {
  for (const auto& unit : units_) {
    if (unit->gathering()) unit->Reshard(pool_);
  }
}

void FsdpRoot::PostForward(FsdpUnit& unit, const std::vector<at::Tensor>& outputs) {
  runtime::MutexLock lock(mutex_);
  if (outermost(unit)) DropPrefetched();
  if (counts_runs_ && !backward_) unit.EndRun(++time_);
  if (!at::GradMode::is_enabled()) return unit.Reshard(pool_);
  TORCH_CHECK(!outputs.empty() || !unit.trainable(), "FullyShardedDataParallel: the forward pass of the module with ",
              unit.parameters().front().name,
              " returned no tensor that can be found, so its backward pass can't be "
              "followed; return tensors, or give its type an overload of AppendTensors (trainer/base/tensors_of.h)");
  if (unit.reshards_after_forward(outermost(unit))) unit.ReshardAfterForward(pool_);
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    output.register_hook([weak = weak_from_this(), weak_unit = unit.weak_from_this()](const at::Tensor&) {
      const auto self = weak.lock();
      const auto live = weak_unit.lock();
      if (self != nullptr && live != nullptr) self->PreBackward(*live);
    });
  }
}

void FsdpRoot::QueueFinish() {
  if (backward_ && pass_.goes_on()) return;
  if (backward_) {  // an exception has ended that one, and no forward pass came between
    if (concerns_others_) AgreeOnGivingUp();
    StartOver();
  }
  backward_ = true;
  concerns_others_ = ConcernsOthers();
  passing_.clear();
  PlanReductions();
  pass_.Begin([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      runtime::MutexLock lock(self->mutex_);
      self->Finish();
    }
  });
}

// Units that ran more than once come last, where they hold nobody up; then those that only earlier forward passes had.
void FsdpRoot::PlanReductions() {
  next_to_reduce_ = 0;
  to_reduce_.clear();
  // A second backward pass of one forward pass, or of one before the last, runs through the same units.
  std::vector<FsdpUnit*> order = order_.empty() ? last_order_ : order_;
  for (const auto& unit : units_) unit->TakeRuns();
  std::stable_partition(order.begin(), order.end(), [](const FsdpUnit* unit) { return unit->repeated(); });
  const auto add = [this](FsdpUnit* unit) {
    if (std::find(to_reduce_.begin(), to_reduce_.end(), unit) == to_reduce_.end()) to_reduce_.push_back(unit);
  };
  std::for_each(order.rbegin(), order.rend(), add);
  for (const auto& unit : units_) add(unit.get());
}

void FsdpRoot::PreBackward(FsdpUnit& unit) {
  runtime::MutexLock lock(mutex_);
  RefuseWhileSummoned("backward");
  try {
    QueueFinish();
    ReshardPassed(unit);
    StartUnshard(unit);
    if (unit.options().backward_prefetch == BackwardPrefetch::kBackwardPre) PrefetchBackward(unit);
    unit.FinishUnshard();
    unit.AddGradientHooks(shared_from_this());  // a checkpointed function builds its graph only now
    unit.BeginBackward();
    if (unit.frozen_in_part()) passing_.push_back(&unit);
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

// Nodes of a graph run against the order in which they were made: those of a unit have run when backward comes to what
// was over before it. (Not yet when that is within the unit, or around it.)
void FsdpRoot::ReshardPassed(const FsdpUnit& next) {
  const auto passed = [&](FsdpUnit* unit) { return next.ran_before(*unit) && unit->has_all_gradients(); };
  for (FsdpUnit* unit : passing_) {
    if (passed(unit)) unit->Reshard(pool_);
  }
  std::erase_if(passing_, passed);
}

// The one whose forward pass came before; after the root's own part, which has its parameters, the last.
void FsdpRoot::PrefetchBackward(const FsdpUnit& unit) {
  if (order_.empty()) return;
  FsdpUnit* next = order_.back();
  if (&unit != order_.front()) {
    const auto found = std::find(order_.rbegin(), order_.rend(), &unit);
    if (found == order_.rend()) return;
    next = *(found + 1);
  }
  if (!next->in_backward()) StartUnshard(*next);  // else it is done, or has its parameters
}

void FsdpRoot::OnGradient(FsdpUnit& unit, int parameter) {
  runtime::MutexLock lock(mutex_);
  if (!backward_) return;  // failed before
  try {
    unit.TakeGradient(parameter, share_);
    if (!unit.has_all_gradients()) return;
    if (unit.borrowed() && !unit.frozen_in_part()) {
      passing_.push_back(&unit);
    } else if (!unit.frozen_in_part()) {
      unit.Reshard(pool_);
    }
    LaunchReadyReductions();
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpRoot::LaunchReadyReductions() {
  for (; sync_ && next_to_reduce_ < to_reduce_.size(); ++next_to_reduce_) {
    FsdpUnit& unit = *to_reduce_[next_to_reduce_];
    if (!unit.trainable()) continue;
    if (!unit.has_all_gradients()) return;
    LaunchReduction(unit, unit.ReleaseFlatGradient());
  }
}

void FsdpRoot::LaunchReduction(FsdpUnit& unit, at::Tensor flat) {
  if (unit.padded_numel() == 0) return;
  Tell(Step::kReduce, unit);
  // The one before has ended by now, or else this rank waits: so two flat gradients exist at a time.
  if (!reductions_.empty()) Replicate(reductions_.back());
  Reduction reduction;
  reduction.unit = &unit;
  ++traffic_.reductions;
  traffic_.reduced_bytes += static_cast<int64_t>(flat.nbytes());
  if (unit.shards() == 1) {
    reduction.reduced = std::move(flat);
  } else {
    StartScatter(reduction, std::move(flat));
  }
  reduction.scattering = true;
  reductions_.push_back(std::move(reduction));
}

void FsdpRoot::StartScatter(Reduction& reduction, at::Tensor flat) {
  const int64_t shard_numel = reduction.unit->shard_numel();
  reduction.reduced = at::empty({shard_numel}, flat.options());
  if (world_group_ == nullptr) {
    reduction.work = ReduceScatter(*reduce_group_, AsBuffer(flat), AsBuffer(reduction.reduced), comm::ReduceOp::kSum);
  } else {
    std::vector<int64_t> counts, places;
    for (int replica = 0; replica < replicate_->size(); ++replica) {
      const int64_t begin = PieceBegin(shard_numel, replica), end = PieceBegin(shard_numel, replica + 1);
      for (int shard = 0; shard < shard_.size(); ++shard) {
        counts.push_back(end - begin);
        places.push_back(shard * shard_numel + begin);
      }
    }
    reduction.piece = at::empty({counts[world_group_->rank()]}, flat.options());
    reduction.work = ReduceScatterV(*world_group_, AsBuffer(flat), {.counts = counts, .displacements = places},
                                    AsBuffer(reduction.piece), comm::ReduceOp::kSum);
  }
  reduction.flat = std::move(flat);
}

// The first element of a shard that `replica` sums.
int64_t FsdpRoot::PieceBegin(int64_t shard_numel, int replica) const {
  return shard_numel * replica / replicate_->size();
}

// Ends the reduce-scatter and starts what follows it.
void FsdpRoot::Replicate(Reduction& reduction) {
  if (!reduction.scattering) return;
  reduction.scattering = false;
  const absl::Status status = reduction.work.Wait();
  reduction.work = runtime::Work();
  reduction.flat = at::Tensor();
  ThrowUnlessAllCame(status, "reducing the gradients from " + reduction.unit->parameters().front().name);
  if (replicate_group_ == nullptr || replicate_group_->size() == 1) return;
  traffic_.replicated_bytes += static_cast<int64_t>(reduction.reduced.nbytes());
  const comm::Buffer buffer = AsBuffer(reduction.reduced);
  if (reduction.piece.defined()) {
    std::vector<int64_t> counts;
    for (int replica = 0; replica < replicate_->size(); ++replica) {
      counts.push_back(PieceBegin(buffer.count, replica + 1) - PieceBegin(buffer.count, replica));
    }
    reduction.work =
        AllGatherV(*replicate_group_, AsBuffer(reduction.piece), buffer, {.counts = counts, .displacements = {}});
  } else {
    reduction.work = AllReduce(*replicate_group_, buffer, buffer, comm::ReduceOp::kSum);
  }
}

void FsdpRoot::FinishReductions() {
  for (Reduction& reduction : reductions_) Replicate(reduction);
  for (Reduction& reduction : reductions_) {
    const absl::Status status = reduction.work.Wait();
    reduction.work = runtime::Work();
    ThrowUnlessAllCame(status, "averaging the gradients from " + reduction.unit->parameters().front().name);
    reduction.unit->SetShardGradients(reduction.reduced);
  }
  reductions_.clear();
}

void FsdpRoot::Finish() {
  if (!backward_) return;
  try {
    for (const auto& unit : units_) unit->Reshard(pool_);
    // What is left had parameters without gradients, or waited for units that had.
    for (; sync_ && next_to_reduce_ < to_reduce_.size(); ++next_to_reduce_) {
      FsdpUnit& unit = *to_reduce_[next_to_reduce_];
      if (unit.trainable() && unit.in_backward()) LaunchReduction(unit, unit.ReleaseFlatGradient());
    }
    if (sync_) Tell(Step::kFinish, *units_.front());
    FinishReductions();
    for (const auto& unit : units_) {
      unit->RestoreShardGradients();
      unit->ExpectAllGradients();
    }
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
  backward_ = false;
  if (!order_.empty()) last_order_ = std::exchange(order_, {});
}

void FsdpRoot::ForgetOrder() {
  runtime::MutexLock lock(mutex_);
  order_.clear();
  last_order_.clear();
  for (const auto& unit : units_) {
    unit->Reshard(pool_);
    unit->ForgetRuns();  // those that only answered have none
  }
}

void FsdpRoot::set_share(int ranks) {
  const double share = 1.0 / ranks;
  // What no_sync has accumulated is part of the next average, and so of its share.
  for (const auto& unit : units_) {
    if (share != share_) unit->ScaleFlatGradient(share / share_);
  }
  share_ = share;
}

void FsdpRoot::UnshardAll() {
  runtime::MutexLock lock(mutex_);
  TORCH_CHECK(join_ == nullptr || join_->all_have_inputs(),
              "FullyShardedDataParallel: SummonFullParams under Join, where a rank has no inputs (or none has begun an "
              "iteration): that rank has yet to do its step; do it after Join::run");
  for (const auto& unit : units_) {
    // Forgets what an earlier forward pass left or, where it ended in an exception, was gathering: shards may be newer.
    if (!unit->unsharded()) unit->Reshard(pool_);
    StartUnshard(*unit);
  }
  for (const auto& unit : units_) unit->FinishUnshard();
  ++summoned_;
}

void FsdpRoot::ReshardAll(bool writeback) {
  runtime::MutexLock lock(mutex_);
  --summoned_;
  for (const auto& unit : units_) {
    if (writeback) unit->WriteBack();
    unit->Reshard(pool_);
  }
}

void FsdpRoot::Reshard() {
  runtime::MutexLock lock(mutex_);
  TORCH_CHECK(
      summoned_ == 0,
      "FullyShardedDataParallel: shards are asked for under SummonFullParams, where parameters are whole and may "
      "have changed; save, load and initialise after it");
  for (const auto& unit : units_) unit->Reshard(pool_);
}

}  // namespace cohort::trainer
