// Cutting the layers of a whole model, training them beside DistributedDataParallel, and their checkpoints.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/torchshard/parallel_dim.h"
#include "torch/nn/module.h"
#include "torch/ordered_dict.h"

namespace cohort::trainer::torchshard {

// Names in the model given.
struct Conversion {
  std::vector<std::string> converted;
  // Layers of torch that stay whole, because nobody can put another layer in the place of a typed C++ member: the
  // member would go on with the old one. Declare them as torchshard::nn::ParallelLinear or ParallelEmbedding, which are
  // torch's layers until they are converted. So do layers that share a parameter with such a one.
  std::vector<std::string> not_converted;
};

// Cut all linear layers (or embeddings) of `model`: whole ParallelLinear where they are, and torch::nn::Linear in a
// Sequential, whose place a ParallelLinear of the same parameters takes: the tensors stay, frozen ones frozen, and a
// layer in several places stays one. No rank makes a second whole weight. Layers that are cut already stay as they are.
// Local. Make optimizers and wrappers afterwards.
Conversion convert_parallel_linear(torch::nn::Module& model, ParallelDim dim);
Conversion convert_parallel_embedding(torch::nn::Module& model, ParallelDim dim);

// Returns the parameters of `model` that are cut over the parallel group, at any depth, for
// DistributedDataParallelOptions::ignored_parameters. Lets backward average their gradients over the other groups, if
// there are any, whose ranks have the same parts. Call it once, after init_process_group and before DDP. Local.
std::vector<at::Tensor> register_ddp_parameters_to_ignore(torch::nn::Module& model);

// Parameters and buffers by name.
using StateDict = torch::OrderedDict<std::string, at::Tensor>;
StateDict state_dict(const torch::nn::Module& model);
// Returns `state`, this rank's state of `model`, with whole parameters in the place of cut ones. All ranks of the group
// call it, and all get the whole. Blocks. Throws DistributedError.
StateDict collect_state_dict(const torch::nn::Module& model, const StateDict& state);
// The other way: this rank's parts of whole parameters, on any number of ranks. Local. Throws c10::Error for tensors of
// other sizes than the model's.
StateDict relocate_state_dict(const torch::nn::Module& model, const StateDict& whole);
// Copies `state`, of this rank, into the model. Local. Throws c10::Error, and changes nothing, unless names and sizes
// are the model's.
void load_state_dict(torch::nn::Module& model, const StateDict& state);

}  // namespace cohort::trainer::torchshard
