// Reads a safetensors file that anybody may have written.
//
// Format: https://huggingface.co/docs/safetensors.
#pragma once

#include <map>
#include <string>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

// Returns all tensors of the file by name, on the CPU. Local. Throws DistributedError: kNotFound, or kDataLoss that
// names the file and what is wrong with it. It takes memory for the file's own size at most, whatever the file says.
std::map<std::string, at::Tensor> ReadSafetensors(const std::string& path);

}  // namespace cohort::trainer
