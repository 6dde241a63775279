// LoRA adapters of a whole model: a frozen base, and two small matrices beside each chosen layer (lora_layer.h).
//
//   auto model = std::make_shared<Gpt>(...);                       // its layers are nn::Linear, nn::Embedding, ...
//   Lora lora(*model, {.r = 8, .lora_alpha = 16, .target_modules = {"qkv", "out"}});
//   DistributedDataParallel ddp(model, *world);                    // or FSDP, ZeRO, a pipeline: after Lora
//   torch::optim::AdamW optimizer(lora.parameters(), 1e-3);
//
// A layer has r * (in + out) trainable numbers, and only these have gradients and optimizer state. Layers may differ in
// r and scale (rank_pattern, alpha_pattern).
//
// Layers: nn::Linear, nn::Embedding, ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding, and TorchShard's
// ParallelLinear and ParallelEmbedding have a place for an adapter. torch::nn::Linear has none: such a layer trains
// through its weight, which is made again before each forward pass (refresh_weights). Names and files are those of PEFT
// (huggingface/peft).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/adapter/lora_layer.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

class Lora {
 public:
  // Freezes all parameters of `model`, and adds an adapter to each layer that `config` names. Sends nothing. Initial
  // values are equal on ranks with equal seeds. Wrap the model afterwards.
  //
  // Throws c10::Error, and changes nothing, when r is not positive, a number is not finite, no layer has a name of
  // target_modules (it lists the model's layers), a named layer is of a kind that has no adapter, or the model is
  // sharded or has adapters already. `model` must outlive this object.
  Lora(torch::nn::Module& model, LoraConfig config);
  ~Lora();
  Lora(const Lora&) = delete;
  Lora& operator=(const Lora&) = delete;

  // Keeps the adapters of layers that `part` has, and forgets the others with their layers. A rank of a pipeline adapts
  // the whole model, so that names and errors are those of the whole, and then keeps its stages. Local.
  // names_of_model() has the forgotten ones too.
  void Keep(const torch::nn::Module& part);

  const LoraConfig& config() const { return config_; }
  // The layers with an adapter, by their names in the model.
  std::vector<std::string> adapted() const;
  // The adapted layers that train through their weight. Empty: refresh_weights need not be called.
  std::vector<std::string> through_weights() const;
  // The matrices, which are the only parameters of the model that train.
  std::vector<at::Tensor> parameters() const;
  // The same with their names in the model, "block0.qkv.lora_A.weight".
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  // The names of all matrices of the model that was adapted.
  const std::vector<std::string>& names_of_model() const { return names_of_model_; }

  // Makes the matrices this rank's parts again where FSDP has left them whole after a forward pass. Every rank calls it
  // alike. It sends nothing. Throws c10::Error under SummonFullParams.
  void Reshard() const;

  // Makes the weights of torch's own layers again: W + scale * B A, with a gradient for A and B. Call it before each
  // forward pass if through_weights() has any. They take one weight of memory each, and as much for its gradient. Such
  // layers take no lora_dropout and no sharding.
  void refresh_weights();

  // Adds the adapters to the base's weights, and leaves them out of forward passes from then on: the model computes as
  // fast as without adapters. unmerge() gives the weights their former bits back, for which merge() keeps copies. Both
  // do nothing if it is so already. Throws c10::Error, and changes nothing, while a weight is sharded by FSDP, and
  // where an adapted layer's weight was also another module's when Lora was made, such as an embedding's that is the
  // head's: that module would compute with the delta too. Ranks of a pipeline throw it even where another one has the
  // layer.
  void merge();
  void unmerge();
  bool merged() const { return merged_; }

 private:
  struct Adapted;

  void Check(const std::string& name, torch::nn::Module& module) const;
  void Add(const std::string& name, const std::shared_ptr<torch::nn::Module>& module);

  LoraConfig config_;
  std::vector<Adapted> layers_;
  std::vector<std::string> names_of_model_;
  std::string shared_;  // an adapted layer whose weight another module has, and that module; empty for none
  bool merged_ = false;
};

}  // namespace cohort::trainer
