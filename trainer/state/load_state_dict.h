// Loads tensors into a module by their names, as PyTorch's load_state_dict: those of a .pt file (ReadPtFile) or of a
// safetensors file (ReadSafetensors).
//
//   load_state_dict(*module, ReadPtFile("model.pt"));
//   load_state_dict(*module, ReadPtFile("checkpoint.pt"), {.prefix = "model."});   // {"model": ..., "optimizer": ...}
//   const StateNames apart = load_state_dict(*module, state, {.strict = false});
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

struct LoadStateOptions {
  // Names of the module that the state lacks, and of the state that the module lacks, are an error. Without it they are
  // returned, and the others are loaded.
  bool strict = true;
  // The part before the names in the state. Names without it are passed over.
  std::string prefix = "";
};

struct StateNames {
  std::vector<std::string> missing;     // parameters and buffers of the module that the state lacks
  std::vector<std::string> unexpected;  // names of the state that the module lacks
};

// Copies tensors into the module's parameters and buffers, whatever their devices, with a conversion between types of
// one kind. Wrappers' parts of names don't count, on either side: "module." of Python's DataParallel and DDP,
// "_orig_mod." of torch.compile, and those of FSDP and activation checkpointing. A tensor that the module has under
// several names needs one of them. Local.
//
// Throws c10::Error, and changes nothing, for missing and unexpected names if `strict`. It does so in any case for
// tensors of another shape or kind of type (integers for floating-point numbers). The message lists all of them, and
// says which prefix the names have in common, if they have one.
StateNames load_state_dict(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state,
                           const LoadStateOptions& options = {});

}  // namespace cohort::trainer
