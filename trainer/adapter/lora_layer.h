// LoraLayer: the two matrices that LoRA adds to one layer (Hu et al., "LoRA: Low-Rank Adaptation of Large Language
// Models", 2021).
//
//   linear      y = x W^T + scale * dropout(x) A^T B^T        A is [r, in], B is [out, r]
//   embedding   y = W[c]  + scale * A^T[c] B^T                A is [r, rows], B is [width, r]
//   scale       lora_alpha / r, or lora_alpha / sqrt(r) (rank-stabilised: Kalajdzievski, 2023)
//
// B starts at 0 (for an embedding A does), so that a new adapter changes nothing. A layer split over N ranks splits one
// of the two. The other is equal on all ranks, and stays so because it gets the gradient of all ranks:
//
//   split along the output   A [r, in] whole, B [out/N, r]
//   split along the input    A [r, in/N], B [out, r] whole
//
// The layer itself makes the product over its ranks (nn/adaptable_layer.h), which moves r numbers a row.
// As torchtitan's components/lora.py. Names and initial values are those of PEFT.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/nn/adaptable_layer.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/dropout.h"

namespace cohort::trainer {

// The options of an adapter, named as PEFT's LoraConfig.
struct LoraConfig {
  int64_t r = 8;
  double lora_alpha = 8;
  // Acts on the adapters' input, while the model trains; not on embeddings, as in PEFT. Layers that may be cut draw
  // masks that do not depend on the mesh: the program sets the place of random numbers (autograd/random_place.h).
  double lora_dropout = 0;
  bool use_rslora = false;  // scale by sqrt(r) in place of r
  // Other values of r and lora_alpha for some layers. A key is a layer's name, its ending behind a dot, or a regular
  // expression for one of them; the first key that fits counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  // Layers whose full name is one of these, or ends with "." and one of these. "all-linear" stands for every linear
  // layer, the output layer included.
  std::vector<std::string> target_modules = {"all-linear"};
  bool full_names = false;            // target_modules are full names alone
  at::ScalarType dtype = at::kFloat;  // of A and B; they are usually float beside a bf16 base
  uint64_t seed = 0;                  // initial values depend on it, the layer's name and the element alone

  double scale() const;
  // The options of the layer `name`: its own r and lora_alpha, and no patterns.
  LoraConfig For(const std::string& name) const;
};

class LoraLayer : public nn::LayerAdapter {
 public:
  // Makes the matrices and registers them in `module`, which is `layer`: "lora_A.weight" and "lora_B.weight", or
  // "lora_embedding_A" and "lora_embedding_B". `name` is the layer's in the whole model, and `config` is for it. Sends
  // nothing.
  LoraLayer(const nn::AdaptableLayer& layer, torch::nn::Module& module, std::string name, const LoraConfig& config);

  at::Tensor forward(nn::AdaptableLayer& layer, const at::Tensor& input) override;

  // Returns what the adapter adds to this rank's part of the weight, as a float tensor of the weight's sizes.
  at::Tensor WeightDelta() const;

  const std::string& name() const { return name_; }
  const nn::LayerForm& form() const { return form_; }
  const at::Tensor& a() const { return a_; }
  const at::Tensor& b() const { return b_; }
  // How they lie on the axis; names are those in the model.
  const Placement& a_placement() const { return a_placement_; }
  const Placement& b_placement() const { return b_placement_; }
  // Their names in the layer: "lora_A.weight" and so on.
  const char* a_name() const;
  const char* b_name() const;

 private:
  void Initialise(uint64_t seed);
  at::Tensor Dropped(const nn::AdaptableLayer& layer, const at::Tensor& x);

  std::string name_;
  nn::LayerForm form_;
  double scale_;
  at::Tensor a_, b_;
  Placement a_placement_, b_placement_;
  torch::nn::Dropout dropout_{nullptr};
};

}  // namespace cohort::trainer
