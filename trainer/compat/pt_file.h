// Reads Python's `.pt` files of tensors without executing them.
//
//   torch.save(model.state_dict(), "model.pt")                     # Python
//   load_state_dict(*module, ReadPtFile("model.pt"));              // C++
//
// Such a file has a pickle, which is a program. Python's unpickling may call any function (CVE-2022-45907 and its
// like). This reader calls none: it finds the tensors among the values that the pickle would make (compat/README.md).
#pragma once

#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/state/load_state_dict.h"

namespace cohort::trainer {

// Returns the tensors of a file that torch.save wrote, of any version since 0.1.10, on the CPU and without gradients. A
// state_dict keeps its names. Keys and places are joined with dots where dictionaries and lists are nested:
// "model.layer.weight", "optimizer.state.0.exp_avg". A whole module gives the names of its state_dict(). A file of one
// tensor gives it the name "".
//
// Values that are no tensors are left out. `left_out`, where given, gets their names and Python types: {"epoch": "int",
// "args": "argparse.Namespace"}. Local. Throws c10::Error with the defect, whatever bytes a file has; also where two
// tensors would have one name, and for tensors that are not understood (quantized ones, or types that this libtorch
// lacks), which it names.
std::map<std::string, at::Tensor> ReadPtFile(const std::string& path,
                                             std::map<std::string, std::string>* left_out = nullptr);

}  // namespace cohort::trainer
