#include "cohort/trainer/data/distributed_sampler.h"

#include <algorithm>
#include <charconv>
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

constexpr const char* kEpoch = "sampler.epoch";
constexpr const char* kConsumed = "sampler.consumed";
constexpr const char* kDatasetSize = "sampler.dataset_size";
constexpr const char* kSeed = "sampler.seed";
constexpr const char* kShuffle = "sampler.shuffle";

uint64_t NumberOf(const std::map<std::string, std::string>& state, const std::string& key) {
  const auto entry = state.find(key);
  TORCH_CHECK(entry != state.end(), "DistributedSampler: the saved state lacks ", key);
  const std::string& text = entry->second;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  TORCH_CHECK(error == std::errc() && end == text.data() + text.size(), "DistributedSampler: ", key, " is \"", text,
              "\", which is no number");
  return number;
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
  // The padded list repeats the permutation from its head as often as needed, wherever in it one begins; a shorter
  // total truncates it.
  std::vector<int64_t> mine(num_samples_);
  for (int64_t i = 0; i < num_samples_; ++i) {
    mine[i] = order[(consumed_ + rank_ + i * num_replicas_) % dataset_size_];
  }
  return mine;
}

void DistributedSampler::set_epoch(uint64_t epoch) {
  if (epoch != epoch_) set_consumed(0);
  epoch_ = epoch;
}

void DistributedSampler::set_consumed(int64_t examples) {
  TORCH_CHECK(examples >= 0, "DistributedSampler: ", examples, " examples can't have been consumed");
  consumed_ = examples;
  const int64_t rest = dataset_size_ - std::min(examples, dataset_size_);
  num_samples_ = SamplesPerRank(rest, num_replicas_, options_.drop_last);
}

std::map<std::string, std::string> DistributedSampler::state_dict() const {
  return {{kEpoch, std::to_string(epoch_)},
          {kConsumed, std::to_string(consumed_)},
          {kDatasetSize, std::to_string(dataset_size_)},
          {kSeed, std::to_string(options_.seed)},
          {kShuffle, options_.shuffle ? "1" : "0"}};
}

void DistributedSampler::load_state_dict(const std::map<std::string, std::string>& state) {
  const uint64_t epoch = NumberOf(state, kEpoch), consumed = NumberOf(state, kConsumed);
  TORCH_CHECK(NumberOf(state, kDatasetSize) == static_cast<uint64_t>(dataset_size_) &&
                  NumberOf(state, kSeed) == options_.seed && (NumberOf(state, kShuffle) != 0) == options_.shuffle,
              "DistributedSampler: the saved order is of ", state.at(kDatasetSize), " examples with seed ",
              state.at(kSeed), state.at(kShuffle) == "0" ? ", not shuffled" : "", ", and this one is of ",
              dataset_size_, " with seed ", options_.seed, options_.shuffle ? "" : ", not shuffled",
              "; use the same dataset and options to resume");
  TORCH_CHECK(consumed <= uint64_t{1} << 62, "DistributedSampler: ", kConsumed, " is ", consumed);
  epoch_ = epoch;
  set_consumed(static_cast<int64_t>(consumed));
}

}  // namespace cohort::trainer
