#include "cohort/comm/communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cohort/comm/group/derived_groups.h"
#include "cohort/comm/group/group.h"
#include "cohort/comm/group/shrink.h"
#include "cohort/comm/group/transport_set.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/env.h"

namespace cohort::comm {
namespace {

// Tags tell apart the ways in which a group's id is derived from its parent's.
constexpr uint64_t kWorldTag = 1;
constexpr uint64_t kSubgroupTag = 2;
constexpr uint64_t kSplitTag = 3;
constexpr uint64_t kDuplicateTag = 4;
constexpr uint64_t kFirstDeviceTag = 1000;  // plus the device's index

std::unique_ptr<Group> MadeFrom(Group& parent, std::vector<int> members, uint64_t id) {
  return std::make_unique<Group>(parent, std::move(members), id, parent.context().fails_with);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::World(runtime::Runtime& runtime,
                                                                  const CommunicatorOptions& options) {
  const auto level = static_cast<int>(options.determinism);
  if (level < 0 || level >= kDeterminismLevels) {
    return absl::InvalidArgumentError("world: CommunicatorOptions::determinism is " + std::to_string(level) +
                                      ", which is no Determinism");
  }
  if (runtime.forks().InChild()) {
    return absl::FailedPreconditionError(
        "world: this process was forked from a rank, whose place among the ranks it cannot take: communicate in the "
        "parent, or fork before Runtime::Init");
  }
  if (runtime.finalized()) return absl::FailedPreconditionError("world: the runtime has been finalized");
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  absl::StatusOr<Tuning> given = Tuning::Parse(environment.tuning);
  if (!given.ok()) return absl::InvalidArgumentError("COHORT_TUNING: " + std::string(given.status().message()));
  COHORT_ASSIGN_OR_RETURN(Tuning tuning, Tuning::Parse(options.tuning, *std::move(given)));
  std::vector<int> members(runtime.world_size());
  std::iota(members.begin(), members.end(), 0);
  uint64_t sequence;
  {
    runtime::EngineLock lock(runtime.engine());
    sequence = TransportSet::Of(runtime).NextWorld();
  }
  // A runtime that is not the process' first in the epoch has a segment, and so a number, of its own.
  const uint64_t id = GroupId(0, kWorldTag, sequence, members, runtime.segment().epoch());
  return std::unique_ptr<Communicator>(new Communicator(std::make_unique<Group>(
      runtime, std::move(members), id, options.transports, std::move(tuning), options.determinism)));
}

Group& GroupOf(Communicator& communicator) { return *communicator.group_; }

Communicator::Communicator(std::unique_ptr<Group> group) : group_(std::move(group)) {}
Communicator::~Communicator() {
  if (group_->forks_.InChild()) runtime::LeaveToParent(group_.release());
}

int Communicator::rank() const { return group_->context().rank; }
int Communicator::size() const { return group_->context().size; }
uint64_t Communicator::id() const { return group_->context().id; }
const std::vector<int>& Communicator::members() const { return group_->context().members; }
absl::Status Communicator::status() const { return group_->status(); }

Work Communicator::AllReduce(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kAllReduce, in, out, op, -1, -1, site}, options);
}

Work Communicator::Reduce(ConstBuffer in, Buffer out, ReduceOp op, int root, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kReduce, in, out, op, root, -1, site}, options);
}

Work Communicator::Broadcast(Buffer buffer, int root, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kBroadcast, buffer, buffer, ReduceOp::kSum, root, -1, site}, options);
}

Work Communicator::Gather(ConstBuffer in, Buffer out, int root, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kGather, in, out, ReduceOp::kSum, root, -1, site}, options);
}

Work Communicator::Scatter(ConstBuffer in, Buffer out, int root, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kScatter, in, out, ReduceOp::kSum, root, -1, site}, options);
}

Work Communicator::AllGather(ConstBuffer in, Buffer out, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kAllGather, in, out, ReduceOp::kSum, -1, -1, site}, options);
}

Work Communicator::ReduceScatter(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kReduceScatter, in, out, op, -1, -1, site}, options);
}

Work Communicator::AllToAll(ConstBuffer in, Buffer out, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kAllToAll, in, out, ReduceOp::kSum, -1, -1, site}, options);
}

Work Communicator::GatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, int root,
                           const CallOptions& options, Site site) {
  const CallShape shape{{}, out_blocks};
  return group_->Submit({CollectiveKind::kGatherV, in, out, ReduceOp::kSum, root, -1, site}, options, &shape);
}

Work Communicator::ScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, int root,
                            const CallOptions& options, Site site) {
  const CallShape shape{in_blocks};
  return group_->Submit({CollectiveKind::kScatterV, in, out, ReduceOp::kSum, root, -1, site}, options, &shape);
}

Work Communicator::AllGatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, const CallOptions& options,
                              Site site) {
  const CallShape shape{{}, out_blocks};
  return group_->Submit({CollectiveKind::kAllGatherV, in, out, ReduceOp::kSum, -1, -1, site}, options, &shape);
}

Work Communicator::ReduceScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, ReduceOp op,
                                  const CallOptions& options, Site site) {
  const CallShape shape{in_blocks};
  return group_->Submit({CollectiveKind::kReduceScatterV, in, out, op, -1, -1, site}, options, &shape);
}

Work Communicator::AllToAllV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, const BlockLayout& out_blocks,
                             const CallOptions& options, Site site) {
  const CallShape shape{in_blocks, out_blocks};
  return group_->Submit({CollectiveKind::kAllToAllV, in, out, ReduceOp::kSum, -1, -1, site}, options, &shape);
}

Work Communicator::Barrier(const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kBarrier, {}, {}, ReduceOp::kSum, -1, -1, site}, options);
}

Work Communicator::Send(ConstBuffer in, int peer, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kSend, in, {}, ReduceOp::kSum, -1, peer, site}, options);
}

Work Communicator::Recv(Buffer out, int peer, const CallOptions& options, Site site) {
  return group_->Submit({CollectiveKind::kRecv, {}, out, ReduceOp::kSum, -1, peer, site}, options);
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Split(int color, int key, Site site) {
  const int32_t mine[2] = {color, key};
  std::vector<int32_t> all(2 * static_cast<size_t>(size()));
  COHORT_RETURN_IF_ERROR(AllGather(ConstBuffer(mine, 2), Buffer(all.data(), 2 * int64_t{size()}), {}, site).Wait());
  const uint64_t split = group_->derived().NextSplit();
  if (color < 0) {
    group_->OnSplit(color, key, 0);
    return nullptr;
  }
  std::vector<std::pair<int32_t, int>> order;  // key, rank
  for (int i = 0; i < size(); ++i) {
    if (all[2 * static_cast<size_t>(i)] == color) order.emplace_back(all[2 * static_cast<size_t>(i) + 1], i);
  }
  std::sort(order.begin(), order.end());
  std::vector<int> chosen;
  for (const auto& [unused, rank] : order) chosen.push_back(members()[rank]);
  const uint64_t id = GroupId(group_->context().id, kSplitTag, split, chosen, group_->runtime().identity().epoch);
  group_->OnSplit(color, key, id);
  auto group = MadeFrom(*group_, std::move(chosen), id);
  return std::unique_ptr<Communicator>(new Communicator(std::move(group)));
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Subgroup(std::span<const int> ranks) {
  if (group_->InChild()) return group_->WhyNotInChild();
  const std::string list = "subgroup: the list of ranks ";
  std::vector<int> chosen;
  std::vector<bool> seen(size());
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size()) {
      return absl::InvalidArgumentError(list + "holds " + std::to_string(rank) + "; the group's ranks are 0 to " +
                                        std::to_string(size() - 1));
    }
    if (seen[rank]) return absl::InvalidArgumentError(list + "holds " + std::to_string(rank) + " twice");
    seen[rank] = true;
    chosen.push_back(members()[rank]);
  }
  if (!seen[rank()]) {
    return absl::InvalidArgumentError(list + "lacks the caller, rank " + std::to_string(rank()) +
                                      "; only members make a subgroup");
  }
  const uint64_t sequence = group_->derived().NextSubgroup(chosen);
  const uint64_t epoch = group_->runtime().identity().epoch;
  const uint64_t id = GroupId(group_->context().id, kSubgroupTag, sequence, chosen, epoch);
  auto group = MadeFrom(*group_, std::move(chosen), id);
  return std::unique_ptr<Communicator>(new Communicator(std::move(group)));
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Derive(uint64_t tag) {
  if (group_->InChild()) return group_->WhyNotInChild();
  std::vector<int> same = members();
  const uint64_t sequence = group_->derived().NextWith(tag);
  const uint64_t id = GroupId(group_->context().id, tag, sequence, same, group_->runtime().identity().epoch);
  auto group = MadeFrom(*group_, std::move(same), id);
  return std::unique_ptr<Communicator>(new Communicator(std::move(group)));
}

absl::StatusOr<Window> Communicator::AllocateWindow(size_t bytes, const CallOptions& options, Site site) {
  return Window::Allocate(*this, *group_, bytes, options, site);
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Duplicate() { return Derive(kDuplicateTag); }

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::DeviceGroup(int index) {
  const int devices = group_->runtime().identity().devices_per_rank;
  if (index < 0 || index >= devices) {
    return absl::InvalidArgumentError(
        "device group: the index is " + std::to_string(index) + ", and every rank owns " + std::to_string(devices) +
        (devices == 0 ? " devices; start the job with dlaunch --gpus-per-rank, or --simulate-gpus" : " devices"));
  }
  return Derive(kFirstDeviceTag + static_cast<uint64_t>(index));
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Shrink(std::chrono::nanoseconds timeout, Site site) {
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<Group> group, ShrinkGroup(*group_, Deadline::After(timeout), site));
  return std::unique_ptr<Communicator>(new Communicator(std::move(group)));
}

absl::Status Communicator::RegisterDeviceMemory(const Buffer& buffer, std::chrono::nanoseconds timeout) {
  return group_->Register(buffer, Deadline::After(timeout));
}

std::string Communicator::Explain(CollectiveKind kind, int64_t count, DataType dtype, MemoryKind memory) const {
  const std::string call =
      std::string(Name(kind)) + "(" + std::string(Name(dtype)) + ", " + std::to_string(count) + "): ";
  int64_t bytes = 0;
  if (count < 0 || SizeOf(dtype) == 0 || __builtin_mul_overflow(count, static_cast<int64_t>(SizeOf(dtype)), &bytes)) {
    return call + "no such call; a count is at least 0 and stands for less than 2^63 bytes";
  }
  CollectiveRequest request;
  request.kind = kind;
  request.count = count;
  request.dtype = dtype;
  request.memory = memory;
  return call + group_->Explain(request);
}

std::string Communicator::tuning() const { return group_->context().tuning.ToString(); }

absl::Status Communicator::SetTuning(const std::string& text, Site site) {
  // The length and the text of rank 0; an error there is length -1 everywhere.
  std::string table;
  absl::Status local = absl::OkStatus();
  if (rank() == 0) {
    const absl::StatusOr<Tuning> parsed = Tuning::Parse(text);
    local = parsed.status();
    if (parsed.ok()) table = parsed->ToString();
  }
  int64_t length = local.ok() ? static_cast<int64_t>(table.size()) : -1;
  COHORT_RETURN_IF_ERROR(Broadcast(Buffer(&length, 1), 0, {}, site).Wait());
  COHORT_RETURN_IF_ERROR(local);
  if (length < 0) return absl::InvalidArgumentError("rank 0's tuning can't be read; its own error says where");
  table.resize(static_cast<size_t>(length));
  COHORT_RETURN_IF_ERROR(Broadcast(Buffer(reinterpret_cast<uint8_t*>(table.data()), length), 0, {}, site).Wait());
  COHORT_ASSIGN_OR_RETURN(const Tuning tuning, Tuning::Parse(table));
  group_->UseTuning(tuning);
  return absl::OkStatus();
}

void Communicator::Abort(const std::string& reason) {
  if (group_->InChild()) return;
  group_->FailEverywhere(
      absl::AbortedError("rank " + std::to_string(group_->runtime().rank()) + " aborted the group: " + reason), rank());
}

}  // namespace cohort::comm
