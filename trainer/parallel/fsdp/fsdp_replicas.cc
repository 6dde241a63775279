// FullyShardedModule::ReplicateOver: shards that a group of ranks has alike.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/transfer/broadcast.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// The first few.
std::string NamesOf(const FsdpUnit& unit) {
  std::string names;
  for (const FsdpParameter& parameter : unit.parameters()) {
    if (names.size() > 100) return names + ", ...";
    names += (names.empty() ? "" : ", ") + parameter.name;
  }
  return names.empty() ? "its parameters" : names;
}

// Two ranks that share the shards have different elements, whose average is nonsense.
void RefuseOverlap(const comm::Communicator& shard, const comm::Communicator& group, const FsdpUnit& unit) {
  const int self = shard.members()[shard.rank()];
  for (const int member : shard.members()) {
    const auto found = std::find(group.members().begin(), group.members().end(), member);
    TORCH_CHECK(member == self || found == group.members().end(), "DistributedDataParallel: ranks ", self, " and ",
                member, " have different shards of ", NamesOf(unit),
                ", which can't be averaged, and both are in its group; give it a group that has one rank of each set "
                "of shards, or shard over a DeviceMesh of (replicas, shards)");
  }
}

// All ranks throw, or none.
void CheckSameShards(const std::array<int64_t, 3>& mine, comm::Communicator& group) {
  const auto count = static_cast<int64_t>(mine.size());
  std::vector<int64_t> all(count * group.size());
  runtime::Work work = AllGather(group, comm::ConstBuffer(mine.data(), count),
                                 comm::Buffer(all.data(), static_cast<int64_t>(all.size())));
  ThrowUnlessOk(work.Wait(), "comparing the shards of the replicas");
  for (int rank = 1; rank < group.size(); ++rank) {
    const int64_t* theirs = all.data() + count * rank;
    if (std::equal(theirs, theirs + count, all.data())) continue;
    const auto text = [](const int64_t* of) {
      return "shard " + std::to_string(of[0]) + " of " + std::to_string(of[1]) + " with " + std::to_string(of[2]) +
             " elements";
    };
    throw DistributedError(absl::StatusCode::kFailedPrecondition,
                           "DistributedDataParallel: its ranks must have equal shards, but rank 0 has " +
                               text(all.data()) + " and rank " + std::to_string(rank) + " has " + text(theirs));
  }
}

}  // namespace

void FullyShardedModule::ReplicateOver(comm::Communicator& group) {
  TORCH_CHECK(root_ == nullptr, "DistributedDataParallel: the shards were used before they were wrapped; wrap first");
  TORCH_CHECK(replicate_ == nullptr && !options_.reduce_over_world,
              "DistributedDataParallel: the shards are replicated by their DeviceMesh or sharding strategy already");
  RefuseOverlap(*shard_, group, *unit_);
  std::vector<at::Tensor> state;
  int64_t elements = 0;
  for (FullyShardedModule* each : Within()) {
    for (const FsdpParameter& parameter : each->unit_->parameters()) state.push_back(parameter.tensor);
    elements += each->unit_->shard_numel();
  }
  CheckSameShards({shard_->rank(), shard_->size(), elements}, group);
  for (const auto& [name, buffer] : unwrapped_buffers()) state.push_back(buffer);
  BroadcastTensors(group, state, 0, "broadcasting the first replica's parameters and buffers");
  replicate_ = &group;
  replicates_within_ = true;
}

}  // namespace cohort::trainer
