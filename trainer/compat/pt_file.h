// Reads Python's `.pt` files of tensors without executing them.
//
//   torch.save(model.state_dict(), "model.pt")                     # Python
//   load_state_dict(*module, ReadPtFile("model.pt"));              // C++
//
// Such a file is a zip archive with a pickle, which is a program. Python's unpickling may call any function
// (CVE-2022-45907 and its like). This reader only makes dictionaries, lists, numbers, texts, and tensors of the
// archive's own bytes. It refuses a file that names anything else to be called, and reports that name.
#pragma once

#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/state/load_state_dict.h"

namespace cohort::trainer {

// Returns the tensors of a file that torch.save wrote (torch 1.6 and later). A state_dict keeps its names. Nested
// dictionaries and lists give their keys and places joined with dots ("model.layer.weight",
// "optimizer.state.0.exp_avg"). Values that are not tensors are left out. Local. Throws c10::Error with the defect,
// whatever bytes a file has.
std::map<std::string, at::Tensor> ReadPtFile(const std::string& path);

}  // namespace cohort::trainer
