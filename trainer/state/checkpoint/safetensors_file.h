// Reads a safetensors file that anybody may have written.
//
// Format: https://huggingface.co/docs/safetensors.
#pragma once

#include <map>
#include <string>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

// Returns all tensors of the file by name, on the CPU. "model.safetensors.index.json" stands for the files that it
// names, which lie beside it. Local. Throws DistributedError:
// - kNotFound;
// - kDataLoss, with the file and what is wrong with it: keys that stand twice, bytes of two tensors or of none;
// - kUnimplemented, with the tensor, for a type that this libtorch has not.
// It takes memory for a file's own size at most, whatever the file says.
std::map<std::string, at::Tensor> ReadSafetensors(const std::string& path);

}  // namespace cohort::trainer
