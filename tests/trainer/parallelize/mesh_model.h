// A small GPT whose head shares the embedding's weight, on any mesh of replicate, shard and tensor, and its training
// beside one process's. Nothing divides: 13 tokens, 3 heads, 7 places, 2 layers.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/parallel/tensor/linear_functions.h"
#include "cohort/trainer/parallel/tensor/parallel_transformer_block.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_cross_entropy.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_embedding.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/transfer/job.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {

inline constexpr int64_t kTokens = 13, kWidth = 12, kHeads = 3, kPlaces = 7, kBatchRows = 24;

// All meshes of the ranks, each axis in it of at least two: "replicate=2,shard=2".
inline std::vector<std::string> AllMeshes() {
  std::vector<std::string> meshes;
  const int ranks = world->size();
  for (int replicate = 1; replicate <= ranks; ++replicate) {
    for (int shard = 1; shard <= ranks; ++shard) {
      if (ranks % (replicate * shard) != 0) continue;
      std::string mesh;
      const std::array<std::pair<const char*, int>, 3> axes = {
          {{kReplicateAxis, replicate}, {kShardAxis, shard}, {kTensorAxis, ranks / (replicate * shard)}}};
      for (const auto& [name, size] : axes) {
        if (size > 1) mesh += (mesh.empty() ? "" : ",") + std::string(name) + "=" + std::to_string(size);
      }
      meshes.push_back(mesh.empty() ? "tensor=1" : mesh);
    }
  }
  return meshes;
}

struct MeshOptions {
  double dropout = 0;
  double clip = 1e9;
  bool recomputation = false;
  int accumulated = 1;  // micro-batches a step
  bool sequence_parallel = false;
  bool autocast = false;                                     // to bfloat16
  std::optional<at::ScalarType> param_dtype = std::nullopt;  // FSDP's, on meshes with shards
};

using Forward = std::function<at::Tensor(const at::Tensor&)>;
using Block = ParallelTransformerBlockImpl;
using WrapBlock = std::function<std::pair<std::shared_ptr<torch::nn::Module>, Forward>(const std::shared_ptr<Block>&)>;

struct TiedGpt : torch::nn::Module {
  TiedGpt(const TensorAxis& axis, double dropout, const WrapBlock& wrap) : axis(axis) {
    tokens = register_module("tokens", VocabParallelEmbedding(VocabParallelEmbeddingOptions(kTokens, kWidth), axis));
    {
      const torch::NoGradGuard no_grad;
      tokens->weight.mul_(0.2);
    }
    for (uint64_t i = 0; i < 2; ++i) {
      auto [module, forward] = wrap(std::make_shared<Block>(
          ParallelTransformerBlockOptions(kWidth, kHeads).dropout(dropout).attention_dropout(dropout).layer(i), axis));
      register_module("block" + std::to_string(i), module);
      blocks.push_back(forward);
    }
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    if (!axis.sequence_parallel()) return;
    for (const at::Tensor& parameter : norm->parameters()) SumGradientOver(axis, parameter);
  }
  at::Tensor forward(const at::Tensor& codes) {
    axis.set_sequence_length(codes.size(1));
    at::Tensor x = tokens(codes);
    for (const Forward& block : blocks) x = block(x);
    return column_parallel_linear(norm(x), tokens->weight, {}, axis);
  }

  TensorAxis axis;
  VocabParallelEmbedding tokens{nullptr};
  std::vector<Forward> blocks;
  torch::nn::LayerNorm norm{nullptr};
};

// The model on `mesh`. Without a mesh it is one process's, sharded over a group of one rank if param_dtype is set.
class MeshModel {
 public:
  MeshModel(DeviceMesh* mesh, MeshOptions options) : mesh_(mesh), options_(options) {
    torch::manual_seed(3);
    TensorAxis axis;
    if (mesh != nullptr && mesh->has(kTensorAxis)) {
      axis = TensorAxis(mesh->axis(kTensorAxis).value(),
                        {.sequence_parallel = options.sequence_parallel, .sequence_dim = 1});
    }
    if (mesh == nullptr && options.param_dtype.has_value()) {
      const int self[] = {world->rank()};
      alone_ = world->Subgroup(self).value();
      Shard(axis, *alone_);
    } else if (mesh != nullptr && mesh->has(kShardAxis)) {
      std::vector<std::string> data = {kShardAxis};
      if (mesh->has(kReplicateAxis)) data.emplace_back(kReplicateAxis);
      const auto of_data = mesh->Slice(data).value();
      Shard(axis, *of_data);
    } else {
      gpt_ = std::make_shared<TiedGpt>(axis, options.dropout,
                                       [this](const std::shared_ptr<Block>& block) { return Wrapped(block); });
      forward_ = [gpt = gpt_](const at::Tensor& codes) { return gpt->forward(codes); };
      if (mesh != nullptr && mesh->has(kReplicateAxis)) {
        ddp_ = std::make_shared<DistributedDataParallel<TiedGpt>>(gpt_, *mesh->get_group(kReplicateAxis).value());
        forward_ = [ddp = ddp_](const at::Tensor& codes) { return ddp->forward(codes); };
      }
      module_ = gpt_;
    }
    place_ = {.seed = 5};
    if (mesh == nullptr) return;
    for (const char* name : {kReplicateAxis, kShardAxis}) {
      if (!mesh->has(name)) continue;
      place_.first_row = place_.first_row * mesh->size(name).value() + mesh->get_local_rank(name).value();
      place_.row_stride *= mesh->size(name).value();
    }
  }

  // A step of SGD with momentum; its loss, averaged over the ranks, and the norm of its gradients.
  std::pair<double, double> Step(torch::optim::Optimizer& optimizer, int64_t step) {
    optimizer.zero_grad();
    double sum = 0;
    for (int micro_batch = 0; micro_batch < options_.accumulated; ++micro_batch) {
      std::optional<NoSyncGuard> ddp_guard;
      std::optional<FsdpNoSyncGuard> fsdp_guard;
      if (micro_batch + 1 < options_.accumulated) {
        if (ddp_ != nullptr) ddp_guard.emplace(*ddp_);
        if (fsdp_ != nullptr) fsdp_guard.emplace(fsdp_->root());
      }
      const at::Tensor loss = Loss(step, micro_batch) / options_.accumulated;
      loss.backward();
      sum += loss.item<double>();
    }
    const double norm =
        clip_grad_norm_(module_->parameters(), options_.clip, 2.0, mesh_ == nullptr ? nullptr : mesh_).item<double>();
    optimizer.step();
    const comm::Buffer buffer(&sum, 1);
    if (mesh_ != nullptr) {
      EXPECT_TRUE(world->AllReduce(buffer, buffer, comm::ReduceOp::kAvg).Wait().ok());
    }
    return {sum, norm};
  }

  torch::nn::Module& module() const { return *module_; }
  const std::shared_ptr<FullyShardedDataParallel<TiedGpt>>& fsdp() const { return fsdp_; }

 private:
  at::Tensor Loss(int64_t step, int64_t micro_batch) {
    place_.step = step;
    place_.micro_batch = micro_batch;
    set_random_place(place_);
    const at::Tensor text =
        torch::randint(kTokens, {kBatchRows, kPlaces + 1},
                       at::detail::createCPUGenerator(static_cast<uint64_t>(step * 7 + micro_batch)), torch::kInt64);
    const at::Tensor own = text.slice(0, place_.first_row, kBatchRows, place_.row_stride);
    std::optional<Autocast> autocast;
    if (options_.autocast) autocast.emplace(at::kCPU);
    const at::Tensor logits = forward_(own.narrow(1, 0, kPlaces));
    return vocab_parallel_cross_entropy(logits.to(at::kFloat), own.narrow(1, 1, kPlaces), gpt_->axis,
                                        VocabParallelCrossEntropyOptions().num_classes(kTokens));
  }

  template <typename Module>
  std::pair<std::shared_ptr<torch::nn::Module>, Forward> Wrapped(const std::shared_ptr<Module>& module) const {
    const Forward forward = [module](const at::Tensor& x) { return module->forward(x); };
    if (!options_.recomputation) return {module, forward};
    return {module, [forward](const at::Tensor& x) { return checkpoint(forward, x); }};
  }

  template <typename Where>
  void Shard(const TensorAxis& axis, Where& where) {
    FullyShardedDataParallelOptions options;
    options.mixed_precision.param_dtype = options_.param_dtype;
    if (options_.param_dtype.has_value()) options.mixed_precision.reduce_dtype = at::kFloat;
    gpt_ = std::make_shared<TiedGpt>(axis, options_.dropout, [&](const std::shared_ptr<Block>& block) {
      return Wrapped(std::make_shared<FullyShardedDataParallel<Block>>(block, where, options));
    });
    fsdp_ = std::make_shared<FullyShardedDataParallel<TiedGpt>>(gpt_, where, options);
    forward_ = [fsdp = fsdp_](const at::Tensor& codes) { return fsdp->forward(codes); };
    module_ = fsdp_;
  }

  DeviceMesh* mesh_;
  const MeshOptions options_;
  RandomPlace place_;
  std::unique_ptr<comm::Communicator> alone_;
  std::shared_ptr<TiedGpt> gpt_;
  std::shared_ptr<DistributedDataParallel<TiedGpt>> ddp_;
  std::shared_ptr<FullyShardedDataParallel<TiedGpt>> fsdp_;
  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
};

}  // namespace cohort::trainer
