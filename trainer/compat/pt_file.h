// Python's `.pt` files of tensors, read without executing what they say.
//
//   torch.save(model.state_dict(), "model.pt")                     # Python
//   load_state_dict(*module, ReadPtFile("model.pt"));              // C++
//
// Such a file is a zip archive with a pickle, which is a program: unpickled as Python does it, it may call any function
// (CVE-2022-45907 and its like). Here it can only make dictionaries, lists, numbers, texts and tensors of the archive's
// own bytes; a file that names anything else to be called is refused with that name.
#pragma once

#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// The tensors of a file that torch.save wrote (torch 1.6 and later): of a state_dict by its names; of dictionaries and
// lists in each other by their keys and places joined with dots ("model.layer.weight", "optimizer.state.0.exp_avg").
// What is no tensor is left out. Throws c10::Error that says what is wrong, for whatever bytes a file has.
std::map<std::string, at::Tensor> ReadPtFile(const std::string& path);

// Copies tensors into the module's parameters and buffers of the same names, in whatever types and on whatever devices
// those are. Throws c10::Error, naming them, when one is missing, unknown or of another shape; nothing is changed then.
void load_state_dict(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state);

}  // namespace cohort::trainer
