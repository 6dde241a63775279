// The model of the pipeline's tests, and the one process that it is compared with.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/tensor/parallel_dropout.h"
#include "torch/torch.h"

namespace cohort::trainer {

inline constexpr int64_t kWidth = 6;
// Ten times what is promised for telling all ranks of an error, which is a second.
inline constexpr std::chrono::seconds kSoon{10};
inline constexpr int kLayers = 16;  // two stages on each of 4 ranks with 2 devices

// A layer with a residual connection, a weight that it uses twice, a checkpointed part, and dropout.
struct Layer : Shardable<Layer> {
  Layer(bool checkpoints, uint64_t number) : checkpoints(checkpoints) {
    dropout = register_module("dropout", ParallelDropout(ParallelDropoutOptions(0.2).layer(number)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
    down = register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
    twice = register_parameter("twice", torch::randn({kWidth, kWidth}) * 0.4);
  }
  at::Tensor call(at::Tensor x) {
    const auto inner = [this](const at::Tensor& y) { return down(dropout(torch::tanh(up(norm(y))))); };
    const at::Tensor between = checkpoints ? checkpoint(inner, x) : inner(x);
    return x + between.matmul(twice).sigmoid().matmul(twice);
  }
  bool checkpoints;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
  ParallelDropout dropout{nullptr};
  at::Tensor twice;
};

inline torch::nn::Sequential Model() {
  torch::manual_seed(11);
  set_random_place({.seed = 11, .step = 0});
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers - 1; ++i) model->push_back(Layer(i % 3 == 1, static_cast<uint64_t>(i)));
  model->push_back(torch::nn::Linear(kWidth, 4));
  return model;
}

struct Batch {
  at::Tensor inputs, targets;
};

inline Batch BatchOf(int64_t rows, int seed, int64_t ignored = 0) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  Batch batch{torch::randn({rows, kWidth}, generator), torch::randint(0, 4, {rows}, generator)};
  if (ignored > 0) batch.targets.narrow(0, 0, ignored).fill_(-100);
  return batch;
}

inline at::Tensor Loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target,
                                              torch::nn::functional::CrossEntropyFuncOptions().ignore_index(-100));
}

// The thread's place in the forward pass of a micro-batch.
inline RandomPlace PlaceOf(int64_t micro_batch) {
  RandomPlace place = random_place();
  place.micro_batch = micro_batch;
  return place;
}

// One process: the loss of the batch; gradients are accumulated.
inline at::Tensor Alone(torch::nn::Sequential& model, const Batch& batch, int micro_batches) {
  const auto inputs = SplitMicroBatches(batch.inputs, micro_batches, "inputs");
  const auto targets = SplitMicroBatches(batch.targets, micro_batches, "targets");
  const auto weights = LossWeights(targets, [](const at::Tensor& target) { return CountValidTargets(target); });
  at::Tensor sum;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (weights[k] == 0) continue;
    const RandomPlaceGuard guard(PlaceOf(static_cast<int64_t>(k)));
    const at::Tensor loss = Loss(model->forward(inputs[k]), targets[k]);
    (loss * weights[k]).backward();
    const at::Tensor share = loss.detach() * weights[k];
    sum = sum.defined() ? sum + share : share;
  }
  return sum;
}

inline std::vector<PipelineStage> StagesFor(const Schedule& schedule, torch::nn::Sequential& model, int rank,
                                            int devices = 1) {
  const std::vector<NamedLayer> layers = LayersOf(model);
  const LayerCut cut = CutByNumber(layers, schedule.stages);
  std::vector<PipelineStage> stages;
  for (const int stage : StagesOf(schedule, rank, devices)) stages.emplace_back(stage, TakeLayers(layers, cut, stage));
  return stages;
}

inline std::string WhyThrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

}  // namespace cohort::trainer
