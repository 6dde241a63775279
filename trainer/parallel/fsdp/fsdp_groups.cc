#include "cohort/trainer/parallel/fsdp/fsdp_groups.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"

namespace cohort::trainer {
namespace {

std::unique_ptr<comm::Communicator> Copy(comm::Communicator& group) {
  auto copy = group.Duplicate();
  ThrowUnlessOk(copy.status(), "making a communicator of FullyShardedDataParallel");
  return *std::move(copy);
}

// Waits in turns, because nobody knows in which group the others are. Each call has its own timeout.
absl::Status AwaitInTurns(std::vector<runtime::Work>& works) {
  const auto done = [](const runtime::Work& work) { return work.Done(); };
  absl::Status failed;
  while (failed.ok() && !std::all_of(works.begin(), works.end(), done)) {
    for (runtime::Work& work : works) {
      const absl::Status waited = work.Wait(std::chrono::milliseconds(10));
      if (!waited.ok() && work.Done()) failed.Update(work.status());
    }
  }
  return failed;
}

}  // namespace

FsdpGroups::FsdpGroups(comm::Communicator& world, comm::Communicator& shard, comm::Communicator* replicate,
                       bool reduce_over_world, const std::vector<int>& neighbours)
    : shards_(shard.size()), replicas_(replicate == nullptr ? 1 : replicate->size()) {
  gather_ = Copy(shard);
  reduce_ = Copy(shard);
  if (replicate != nullptr) replicate_ = Copy(*replicate);
  if (replicas_ > 1 && shards_ > 1 && reduce_over_world) world_ = Copy(world);
  for (const int count : neighbours) {
    if (neighbours_.count(count) > 0) continue;
    std::vector<int> ranks(count);
    std::iota(ranks.begin(), ranks.end(), shard.rank() / count * count);
    auto group = shard.Subgroup(ranks);
    ThrowUnlessOk(group.status(), "making the neighbours of reshard_after_forward");
    neighbours_[count] = *std::move(group);
  }
}

std::vector<comm::Communicator*> FsdpGroups::All() const {
  std::vector<comm::Communicator*> groups;
  for (const auto* group : {&gather_, &reduce_, &replicate_, &world_}) {
    if (*group != nullptr) groups.push_back(group->get());
  }
  for (const auto& [ranks, group] : neighbours_) groups.push_back(group.get());
  return groups;
}

void FsdpGroups::Abort(const std::string& why) {
  for (comm::Communicator* group : All()) group->Abort(why);
}

void FsdpGroups::CloseWindowGroups() {
  for (auto* group : {&gather_, &reduce_, &world_}) group->reset();
}

absl::Status AgreeThatPassEnded(std::span<comm::Communicator* const> groups, bool all_answer,
                                const std::string& message) {
  std::vector<comm::Communicator*> asked(groups.begin(), groups.end());
  std::erase_if(asked, [](const comm::Communicator* group) { return group->size() == 1; });
  std::vector<int32_t> said(asked.size(), 1);
  std::vector<runtime::Work> works;
  absl::Status failed;
  if (!all_answer) {
    failed = absl::FailedPreconditionError("ranks without inputs can't tell");
  } else {
    for (size_t i = 0; i < asked.size(); ++i) {
      const comm::Buffer word(&said[i], 1);
      works.push_back(AllReduce(*asked[i], word, word, comm::ReduceOp::kSum));
    }
    failed = AwaitInTurns(works);
  }
  for (size_t i = 0; failed.ok() && i < asked.size(); ++i) {
    if (said[i] != asked[i]->size()) failed = absl::FailedPreconditionError("other ranks have called something else");
  }
  if (failed.ok()) return failed;
  for (comm::Communicator* group : asked) group->Abort(message);
  for (runtime::Work& work : works) {
    const absl::Status ignored = work.Wait();  // they write into `said`
    (void)ignored;
  }
  return failed;
}

}  // namespace cohort::trainer
