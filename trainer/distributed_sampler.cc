#include "trainer/distributed_sampler.h"

#include <numeric>
#include <vector>

#include "torch/torch.h"

namespace cohort::trainer {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t SamplesPerRank(int64_t dataset_size, int64_t num_replicas, bool drop_last) {
  if (drop_last && dataset_size % num_replicas != 0) {
    // Python: ceil((N - R) / R); 0 when the dataset is smaller than the world.
    return dataset_size < num_replicas ? 0 : CeilDiv(dataset_size - num_replicas, num_replicas);
  }
  return CeilDiv(dataset_size, num_replicas);
}

}  // namespace

DistributedSampler::DistributedSampler(int64_t dataset_size, int num_replicas, int rank,
                                       DistributedSamplerOptions options)
    : dataset_size_(dataset_size), num_replicas_(num_replicas), rank_(rank), options_(options) {
  TORCH_CHECK(dataset_size >= 1, "DistributedSampler: the dataset is empty");
  TORCH_CHECK(num_replicas >= 1, "DistributedSampler: num_replicas must be at least 1, got ", num_replicas);
  TORCH_CHECK(rank >= 0 && rank < num_replicas, "DistributedSampler: invalid rank ", rank, ", rank should be in [0, ",
              num_replicas - 1, "]");
  num_samples_ = SamplesPerRank(dataset_size, num_replicas, options.drop_last);
}

std::vector<int64_t> DistributedSampler::indices() const {
  std::vector<int64_t> order(dataset_size_);
  if (options_.shuffle) {
    at::Generator generator = at::detail::createCPUGenerator(options_.seed + epoch_);
    const at::Tensor permutation = torch::randperm(dataset_size_, generator, torch::kInt64);
    const int64_t* data = permutation.data_ptr<int64_t>();
    order.assign(data, data + dataset_size_);
  } else {
    std::iota(order.begin(), order.end(), 0);
  }
  // The padded list repeats the permutation from its head as often as needed; a shorter total truncates it.
  std::vector<int64_t> mine(num_samples_);
  for (int64_t i = 0; i < num_samples_; ++i) mine[i] = order[(rank_ + i * num_replicas_) % dataset_size_];
  return mine;
}

}  // namespace cohort::trainer
