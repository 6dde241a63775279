#include "cohort/comm/run/plan_provider.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/run/mismatch.h"
#include "cohort/runtime/base/cpu_cache.h"

namespace cohort::comm {
namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

bool Averages(const CollectiveRequest& request) { return request.op == ReduceOp::kAvg && Reduces(request.kind); }

// The kernel divides where its one combination has both operands of an average.
bool KernelAverages(const CollectiveRequest& request, int size) {
  return Averages(request) && IsSmallFloat(request.dtype) && size == 2;
}

Demands DemandsOf(const CollectiveRequest& request, int size) {
  Demands demands;
  if (!Reduces(request.kind)) return demands;
  demands.rank_order = request.determinism == Determinism::kOrderInvariant ||
                       (request.user_op != nullptr && !request.user_op->commutative);
  demands.built_in = request.determinism == Determinism::kReproducible;
  demands.decodes = IsSmallFloat(request.dtype);
  demands.staged = request.op == ReduceOp::kPreMulSum;
  demands.widening = static_cast<int32_t>(ComputedBytes(request, size) / SizeOf(request.dtype));
  return demands;
}

Placement PlacementOf(const GroupContext& group) {
  std::vector<int> nodes;
  for (const int member : group.members) nodes.push_back(group.runtime->node_of(member));
  return Placement(nodes);
}

// Only what all members see alike: how they are spread over nodes, and the figure that a node's segment holds.
GroupTopology TopologyOf(const GroupContext& group, const Placement& placement) {
  GroupTopology topology;
  topology.size = group.size;
  topology.nodes = placement.nodes();
  topology.smallest_node = placement.shape().smallest;
  topology.largest_node = placement.shape().largest;
  topology.windows = group.windows;
  topology.near_caches = (topology.nodes == 1 || group.runtime->identity().nodes_share_host) && runtime::Level3IsNear();
  // CPUs of other machines are not known here; but nodes may be simulated ones of this machine.
  if (topology.nodes == 1) {
    topology.ranks_per_cpu = std::max(1.0, static_cast<double>(group.size) / group.runtime->segment().cpus());
  } else if (group.runtime->identity().nodes_share_host) {
    topology.ranks_per_cpu =
        std::max(1.0, static_cast<double>(group.size) / static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)));
  }
  return topology;
}

}  // namespace

PlanProvider::PlanProvider(const GroupContext* group, LinkSource* links)
    : HostProvider(group),
      group_(group),
      runner_(links, group->rank, group->size),
      plans_(group->rank, PlacementOf(*group)),
      selector_(TopologyOf(*group, plans_.placement()), group->tuning),
      tuning_hash_(selector_.tuning().Hash()),
      earliest_deadline_(kNever) {
  if (group->checks.results) results_.emplace();
}

PlanProvider::~PlanProvider() {
  activity_ = Activity::kIdle;  // within a user's function nobody may destroy the group
  Fail(absl::CancelledError("the communicator was destroyed"));
}

absl::StatusOr<ServicePlan> PlanProvider::Choose(const CollectiveRequest& request,
                                                 const std::string& forced_algorithm) {
  if (request.memory != MemoryKind::kHost) return absl::UnimplementedError("plans move host memory only");
  const absl::StatusOr<Choice> choice =
      selector_.Choose(request.kind, BytesOf(request), forced_algorithm, DemandsOf(request, group_->size));
  if (!choice.ok()) return choice.status();
  ServicePlan service{.algorithm = choice->algorithm->id, .pieces = choice->pieces, .tuning = tuning_hash_};
  if (choice->fallback != nullptr) {
    service.fallback = choice->fallback->id;
    service.fallback_pieces = choice->fallback_pieces;
  }
  return service;
}

void PlanProvider::Start(PreparedCall& call, const void* in, void* out) {
  StartCall(call, in, out, queue_.empty() && activity_ == Activity::kIdle);
  if (results_.has_value()) [[unlikely]]
    call.record.wire_signature = next()->signature;  // for the black box
}

void PlanProvider::Post() {
  Operation* const operation = next();
  operation->numbered = operation->signature = operation->call.record.wire_signature;
  operation->deadline_ns = 0;
  undated_ = true;
  const bool first = queue_.empty();
  queue_.push(operation);
  // An error here comes again, or is reported, when the call is launched.
  if (first && activity_ == Activity::kIdle && Begin().ok() && phase_ == Phase::kRunning) runner_.PublishFirst();
}

runtime::Work PlanProvider::Launch(const AcceptedCall&) {
  Operation* const operation = TakeNext();
  runtime::Work work = runtime::Work::Adopt(operation);
  if (queue_.front() == operation && activity_ == Activity::kIdle) Advance();
  return work;
}

absl::Status PlanProvider::Begin(bool fallback) {
  Operation& first = *queue_.front();
  const AcceptedCall& call = first.call;
  if (results_.has_value()) [[unlikely]]
    first.signature = first.call.record.wire_signature = results_->Sign(first.numbered);
  algorithm_ = fallback ? call.service.fallback : call.service.algorithm;
  pieces_ = fallback ? call.service.fallback_pieces : call.service.pieces;
  staged_ = ReductionStage::Needed(call.request, group_->size, algorithm_);
  if (!staged_) [[likely]]
    return StartPlan();
  if (!stage_.Begin(call.request, group_->rank, group_->size)) {
    return absl::ResourceExhaustedError("no memory for " + std::to_string(stage_.bytes()) +
                                        " bytes that the reduction is computed in: cut the call");
  }
  phase_ = Phase::kPreparing;
  return PrepareMore();
}

absl::Status PlanProvider::PrepareMore() { return stage_.Prepare() ? StartPlan() : absl::OkStatus(); }

absl::Status PlanProvider::StartPlan() {
  const Operation& first = *queue_.front();
  const CollectiveRequest& request = first.call.request;
  BoundPlan* const bound = algorithm_ == first.call.service.algorithm ? TakeUp(first.call) : nullptr;
  if (bound != nullptr) {
    runner_.Start(*bound);
  } else {
    const bool in_place = staged_ ? stage_.in_place() : request.in_place;
    const bool fold_once = !staged_ && ReductionStage::Folds(request, group_->size, algorithm_);
    absl::StatusOr<std::shared_ptr<const Plan>> plan =
        plans_.Find(request.kind, algorithm_, request.root, in_place, pieces_, fold_once);
    if (!plan.ok()) return plan.status();
    PlanBinding binding = BindingOf(request);
    if (staged_) stage_.Bind(&binding);
    binding.signature = first.signature;
    binding.call = &first.call.record;
    if (!runner_.Start(*std::move(plan), binding)) return runner_.failure().status;
  }
  phase_ = Phase::kRunning;
  return absl::OkStatus();
}

PlanBinding PlanProvider::BindingOf(const CollectiveRequest& request) const {
  PlanBinding binding;
  binding.in = request.in;
  binding.out = request.out;
  binding.count = static_cast<size_t>(request.count);
  binding.blocks = request.blocks;
  binding.element_bytes = SizeOf(request.dtype);
  binding.dtype = request.dtype;
  binding.user_op = request.user_op;
  if (Reduces(request.kind)) {
    binding.kernel = KernelAverages(request, group_->size) ? FindMeanOfTwoKernel(request.dtype)
                                                           : FindReduceKernel(request.dtype, request.op);
    binding.fold = Averages(request) ? FindAverageFoldKernel(request.dtype) : FindFoldKernel(request.dtype, request.op);
  }
  return binding;
}

void PlanProvider::Prepare(PreparedCall& call) {
  const CollectiveRequest& request = call.request;
  const ServicePlan& service = call.service;
  if (results_.has_value()) return;  // an inline run hashes nothing
  // Only the links know which unequal blocks are too long.
  const bool too_long = request.blocks == nullptr && BytesOf(request) > int64_t{kMostInlineBytes};
  const bool plain = request.user_op == nullptr && !ReductionStage::Needed(request, group_->size, service.algorithm) &&
                     !ReductionStage::Folds(request, group_->size, service.algorithm);
  if (too_long || !plain) return;
  absl::StatusOr<std::shared_ptr<const Plan>> plan =
      plans_.Find(request.kind, service.algorithm, request.root, request.in_place, service.pieces);
  if (!plan.ok()) return;
  std::shared_ptr<BoundPlan> bound = runner_.Bind(*std::move(plan), BindingOf(request));
  if (bound == nullptr) return;
  const bool divided_after = Averages(request) && !KernelAverages(request, group_->size);
  call.inline_run =
      InlineRun::Of(bound.get(), divided_after ? group_->size : 1, [this](int peer) { return runner_.LinkTo(peer); });
  // Others run on the runner's bound plan: each with scratch of its own, they would hold much memory.
  if (call.inline_run != nullptr) call.plan = std::move(bound);
}

void PlanProvider::FinishFirst() {
  const CollectiveRequest& request = queue_.front()->call.request;
  if (Averages(request) && request.out != nullptr && !staged_ && !runner_.divides() &&
      !KernelAverages(request, group_->size)) {
    DivideBy(request.dtype, request.out, BlockCount(static_cast<size_t>(request.count), request.blocks), group_->size);
  }
  phase_ = Phase::kIdle;
  Operation* operation = queue_.pop();
  if (results_.has_value()) [[unlikely]]
    operation->call.record.result = results_->Add(HashResult(operation->call.request, group_->size));
  if (queue_.empty()) earliest_deadline_ = kNever;
  const bool at_once = !watch_.waiting() && BytesOf(operation->call.request) <= kMostBytesAtOnce;
  watch_.Clear();
  operation->Finish(group_->runtime->segment().black_box(), absl::OkStatus(), at_once);
}

bool PlanProvider::Advance() {
  bool moved = false;
  activity_ = Activity::kAdvancing;
  const absl::Cleanup ended = [this] { activity_ = Activity::kIdle; };  // an exception may end this
  while (!queue_.empty()) {
    if (phase_ == Phase::kFinishing) [[unlikely]] {
      moved = true;
      if (!stage_.Finish()) break;
      FinishFirst();
      continue;
    }
    if (phase_ != Phase::kRunning) {
      if (const absl::Status begun = phase_ == Phase::kIdle ? Begin() : PrepareMore(); !begun.ok()) {
        group_->fail(begun, -1);
        break;
      }
      if (phase_ != Phase::kRunning) {
        moved = true;
        break;
      }
    }
    activity_ = Activity::kRunning;
    const Progress progress = runner_.Advance();
    activity_ = Activity::kAdvancing;
    if (!failed_.ok()) [[unlikely]] {  // by a user's function: what the runner stood in could not end then
      EndAll(failed_);
      break;
    }
    if (progress == Progress::kDone && runner_.diverted()) [[unlikely]] {
      moved = true;
      if (const absl::Status begun = Begin(/*fallback=*/true); !begun.ok()) {
        group_->fail(begun, -1);
        break;
      }
      continue;
    }
    if (progress == Progress::kFailed) {
      OnRunnerFailed();
      break;
    }
    moved = moved || progress != Progress::kBlocked;
    if (progress != Progress::kDone) break;
    if (staged_) [[unlikely]] {
      phase_ = Phase::kFinishing;
      continue;
    }
    FinishFirst();
  }
  return moved;
}

bool PlanProvider::Poll() {
  if (queue_.empty()) return false;
  if (suspicion_.held()) {
    if (!suspicion_.Due()) return false;
    Mismatch late;  // more results may be known by now
    if (results_.has_value() && runner_.failure().cause != RunnerFailure::Cause::kStatus) {
      late = ExplainMismatch(*group_, queue_.front()->call.record, runner_.failure());
    }
    group_->fail(late.found ? late.error : suspicion_.complaint(), late.found ? late.blamed : suspicion_.peer());
    return false;
  }
  // A user's function that waits for calls of its group gets to its timeout.
  const bool moved = activity_ != Activity::kRunning && Advance();
  if (moved) {
    watch_.Moved();
  } else if (watch_.Waited() && !queue_.empty() && !suspicion_.held()) {
    OnBlocked();
  }
  return moved;
}

void PlanProvider::OnRunnerFailed() {
  const RunnerFailure& failure = runner_.failure();
  if (failure.cause != RunnerFailure::Cause::kStatus) {
    OnMismatch(failure);
  } else if (!suspicion_.Hold(failure.status, failure.peer)) {
    group_->fail(failure.status, -1);
  }
}

// If the calls that met agree, earlier ones did not: a rank's part of those was over without a word from the others.
// Only the agents of other hosts know what these called then.
void PlanProvider::OnMismatch(const RunnerFailure& failure) {
  const runtime::CallRecord& mine = queue_.front()->call.record;
  const Mismatch mismatch = ExplainMismatch(*group_, mine, failure);
  if (mismatch.found) {
    group_->fail(mismatch.error, mismatch.blamed);
    return;
  }
  suspicion_.HoldForVerdict(mismatch.error);
  const uint64_t last = mine.signature.sequence;
  for (uint64_t sequence = FirstSuspect(last); sequence <= last; ++sequence) ReportStall(sequence, false);
}

// Deadlines are counted from the first moment that an operation had to wait: a clock is too dear for those that need
// not.
void PlanProvider::SetDeadlines() {
  const uint64_t now = CoarseNow();
  for (Operation* operation = queue_.front(); operation != nullptr; operation = operation->next) {
    if (operation->deadline_ns == 0) operation->deadline_ns = DeadlineAfter(now, operation->call.timeout);
    earliest_deadline_ = std::min(earliest_deadline_, operation->deadline_ns);
  }
  undated_ = false;
}

void PlanProvider::OnBlocked() {
  if (undated_) SetDeadlines();
  const StallWatch::Event event = watch_.Blocked(earliest_deadline_);
  if (event == StallWatch::Event::kNone) return;
  const Operation* late = queue_.front();
  for (const Operation* operation = late; operation != nullptr; operation = operation->next) {
    if (operation->deadline_ns < late->deadline_ns) late = operation;
  }
  if (event == StallWatch::Event::kStalled) {
    ReportStall(queue_.front()->call.record.signature.sequence, false);
    return;
  }
  earliest_deadline_ = late->deadline_ns;
  if (CoarseNow() < late->deadline_ns) {  // what was due has been completed
    watch_.Clear();
  } else if (event == StallWatch::Event::kOverdue) {
    ReportStall(queue_.front()->call.record.signature.sequence, true);
  } else {
    group_->fail(TimeoutError(*group_, late->call.record, late->call.timeout, runner_.WaitingFor()), -1);
  }
}

void PlanProvider::ReportStall(uint64_t sequence, bool expired) {
  runtime::RankSet members;
  members.ranks = group_->members;
  group_->runtime->ReportStall(group_->id, sequence, members, expired);
}

void PlanProvider::Fail(const absl::Status& status) {
  if (!failed_.ok()) return;
  failed_ = status;
  EndAll(status);
}

void PlanProvider::EndAll(const absl::Status& status) {
  OperationQueue queue = std::exchange(queue_, OperationQueue());
  if (activity_ == Activity::kRunning) {
    queue_.push(queue.pop());  // its memory is in use: Advance ends it
  } else {
    runner_.Reset();
    phase_ = Phase::kIdle;
  }
  while (!queue.empty()) queue.pop()->Finish(group_->runtime->segment().black_box(), status);
}

const runtime::CallRecord* PlanProvider::Pending() const {
  return queue_.empty() ? nullptr : &queue_.front()->call.record;
}

bool PlanProvider::WaitsIn(uint64_t sequence) const {
  const Operation* operation = queue_.front();
  while (operation != nullptr && operation->call.record.signature.sequence != sequence) operation = operation->next;
  return operation != nullptr;
}

void PlanProvider::OnTuning() {
  selector_ = Selector(TopologyOf(*group_, plans_.placement()), group_->tuning);
  tuning_hash_ = selector_.tuning().Hash();
}

std::string PlanProvider::Explain(const CollectiveRequest& request) {
  return selector_.Explain(request.kind, BytesOf(request), DemandsOf(request, group_->size));
}

}  // namespace cohort::comm
