// A user's own layers with cut parameters: the placements of TorchShard's dims, and initial values of parts.
//
//   struct ArcFace : torch::nn::Module {                      // the template of a layer of one's own
//     ArcFace(int64_t in, int64_t classes) {
//       weight = register_cut_parameter(*this, "weight", {classes, in}, /*torch dimension=*/0);
//       nn::init::shard_init_helper_(InitRule::Normal(0, 0.01), weight);
//     }
//     at::Tensor forward(const at::Tensor& x) {
//       const at::Tensor cosines = nn::functional::parallel_linear(normalize(x), normalize(weight), {}, 1);
//       ...                                                   // element by element
//       register_parallel_dim(logits, -1);                    // for the loss
//       return logits;
//     }
//     at::Tensor weight;
//   };
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/placement/placement.h"
#include "cohort/trainer/state/sharded_init.h"
#include "torch/nn/module.h"

namespace cohort::trainer::torchshard {

// Registers a parameter of `module` whose sizes are `whole` in all, and which is cut along dimension `cut` of the
// tensor, as torch.chunk does. Returns this rank's part, without values. Local.
at::Tensor register_cut_parameter(torch::nn::Module& module, const std::string& name, std::vector<int64_t> whole,
                                  int64_t cut);
// Cuts a whole parameter where it is; it stays the same tensor. Does nothing where another layer that shares it has cut
// it alike. Local. Throws c10::Error where it is cut otherwise.
void cut_parameter(at::Tensor parameter, int64_t cut);
// Refuses a parameter that was cut over a process group that has ended: the present group may have other ranks. Local.
// Throws c10::Error, which names `who`.
void check_process_group(const char* who, const at::Tensor& parameter);

namespace nn::init {

// Draws a parameter by `rule`, of a cut one this rank's part: the values of one process's whole parameter if all ranks
// have the same torch::manual_seed. No rank makes the whole. Local.
void shard_init_helper_(const InitRule& rule, const at::Tensor& parameter);

}  // namespace nn::init
}  // namespace cohort::trainer::torchshard
