#include "cohort/trainer/data/distributed_group_sampler.h"

#include "c10/util/Exception.h"

namespace cohort::trainer {
namespace {

int GroupsOf(int num_replicas, int rank, int group_size) {
  TORCH_CHECK(group_size >= 1 && num_replicas >= 1 && num_replicas % group_size == 0,
              "DistributedGroupSampler: groups of ", group_size, " do not divide ", num_replicas, " ranks");
  TORCH_CHECK(rank >= 0 && rank < num_replicas, "DistributedGroupSampler: invalid rank ", rank,
              ", rank should be in [0, ", num_replicas - 1, "]");
  return num_replicas / group_size;
}

}  // namespace

DistributedGroupSampler::DistributedGroupSampler(int64_t dataset_size, int num_replicas, int rank, int group_size,
                                                 DistributedSamplerOptions options)
    : DistributedSampler(dataset_size, GroupsOf(num_replicas, rank, group_size), rank / group_size, options) {}

}  // namespace cohort::trainer
