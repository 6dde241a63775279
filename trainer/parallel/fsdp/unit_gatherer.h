// UnitGatherer: gives units their whole parameters and takes them away again.
#pragma once

#include <memory>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fsdp_groups.h"
#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"
#include "cohort/trainer/parallel/fsdp/join_calls.h"
#include "cohort/trainer/parallel/fsdp/unit_order.h"
#include "cohort/trainer/transfer/storage_pool.h"

namespace cohort::trainer {

class UnitGatherer {
 public:
  // All arguments outlive this.
  UnitGatherer(const std::vector<std::shared_ptr<FsdpUnit>>& units, FsdpGroups& groups, const JoinCalls& calls,
               const UnitTags& tags, FsdpTraffic& traffic)
      : units_(units), groups_(groups), calls_(calls), tags_(tags), traffic_(traffic) {}

  // Starts gathering a unit that is sharded. Collective over the shards, and blocks, the first time. Throws
  // DistributedError.
  void Start(FsdpUnit& unit);
  void Reshard(FsdpUnit& unit) { unit.Reshard(pool_); }
  void ReshardAfterForward(FsdpUnit& unit) { unit.ReshardAfterForward(pool_); }
  void ReshardAll();

 private:
  void EnterWindows();

  const std::vector<std::shared_ptr<FsdpUnit>>& units_;
  FsdpGroups& groups_;
  const JoinCalls& calls_;
  const UnitTags& tags_;
  FsdpTraffic& traffic_;
  StoragePool pool_;
  bool in_windows_ = false;
};

}  // namespace cohort::trainer
