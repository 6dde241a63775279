// DistributedGroupSampler: the examples of groups of ranks that share one model. All ranks of a group see the same
// examples in the same order, and groups see different ones: the data of layers that are cut over the group, whose
// input is whole on every rank (tensor parallelism, TorchShard's models that are cut everywhere).
//
//   4 ranks, groups of 2:   ranks 0 and 1 see examples 0 2 4 ..., ranks 2 and 3 see 1 3 5 ... of the permutation
#pragma once

#include "cohort/trainer/data/distributed_sampler.h"

namespace cohort::trainer {

class DistributedGroupSampler : public DistributedSampler {
 public:
  // Samples for `rank` of `num_replicas` ranks, in groups of `group_size` neighbours. num_samples() counts the examples
  // of a group. Throws c10::Error as DistributedSampler, and for a group size that does not divide the ranks.
  DistributedGroupSampler(int64_t dataset_size, int num_replicas, int rank, int group_size,
                          DistributedSamplerOptions options = {});
};

}  // namespace cohort::trainer
