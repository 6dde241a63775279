// Weights that stages share: which parameters are one weight, as the options of a pipeline say it by pairs.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/parallel/pipeline/pipeline_stage.h"

namespace cohort::trainer {

// A weight that two stages have, such as the embedding of the first that is the head of the last. Its gradient is the
// sum of both stages', on both; whole gradients are added up before they are reduced over replicas (Megatron-LM#844).
// A weight of three or more stages has a pair for each further one: all that pairs connect are one weight, and have
// the sum of all.
struct SharedWeight {
  int stage = 0;
  std::string name;  // of the parameter in the whole model; checkpoints keep the weight under it, once
  int other_stage = 0;
  std::string other_name;
};

// A weight and all stages that have it.
struct WeightOfStages {
  struct Holder {
    int stage = 0;
    std::string name;

    bool operator==(const Holder&) const = default;
  };
  // The first has the name that checkpoints keep and the values that the others get: the first that is `stage` of some
  // pair and `other_stage` of none.
  std::vector<Holder> holders;

  const std::string& name() const { return holders.front().name; }
};

// Joins the pairs. A function of its argument alone, so equal on all ranks.
std::vector<WeightOfStages> JoinPairs(const std::vector<SharedWeight>& pairs);

// Returns the parameter of a stage by its name in the whole model. Throws c10::Error if there is none.
at::Tensor SharedParameterOf(const PipelineStage& stage, const std::string& name);

// Checks the part of the weights that is on this rank, which has `stages`. Local. Throws c10::Error for a stage that
// does not exist, a parameter that does not exist, a pair of one parameter, and a parameter that is given two names.
void CheckSharedWeights(const std::vector<WeightOfStages>& weights, const std::vector<PipelineStage>& stages,
                        int stage_count);

// Numbers the copies of each weight, by weight and holder: stages of one rank may have one tensor, which is one copy.
// Also compares sizes, types and frozenness of the copies, because gradients that are added up must be of the same
// part. Collective over all ranks of the pipeline; blocks. Throws DistributedError (kFailedPrecondition) on all of
// them, which names stages and weight.
std::vector<std::vector<int>> NumberCopies(comm::Communicator& group, const std::vector<WeightOfStages>& weights,
                                           const std::vector<PipelineStage>& stages);

}  // namespace cohort::trainer
