// FsdpParts: what the root of a sharded model, its passes and its stage work with.
#pragma once

#include <memory>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/parallel/fsdp/flat_parameters.h"
#include "cohort/trainer/parallel/fsdp/fsdp_groups.h"
#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"
#include "cohort/trainer/parallel/fsdp/gradient_reductions.h"
#include "cohort/trainer/parallel/fsdp/join_calls.h"
#include "cohort/trainer/parallel/fsdp/unit_gatherer.h"
#include "cohort/trainer/parallel/fsdp/unit_gradients.h"
#include "cohort/trainer/parallel/fsdp/unit_order.h"

namespace cohort::trainer {

struct FsdpParts {
  // As FsdpRoot's.
  FsdpParts(std::vector<std::shared_ptr<FsdpUnit>> model, comm::Communicator& world, comm::Communicator& shard,
            comm::Communicator* replicate);

  runtime::Mutex mutex;  // guards all of it: hooks run on the engine's threads
  const std::vector<std::shared_ptr<FsdpUnit>> units;
  const int ranks;  // all of them
  FsdpTraffic traffic;
  FsdpGroups groups;
  JoinCalls calls;
  UnitOrder order;
  UnitTags tags;
  UnitGatherer gatherer;
  GradientReductions reductions;
};

}  // namespace cohort::trainer
