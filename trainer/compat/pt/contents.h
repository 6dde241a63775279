// The tensors among the values of a pickle, by name.
#pragma once

#include <map>
#include <string>

#include "cohort/trainer/compat/pt/pickle.h"
#include "cohort/trainer/compat/pt/stored_tensor.h"

namespace cohort::trainer::pt {

struct Contents {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> left_out;  // the types of values without tensors, by name
};

// Names are keys, places and attributes, joined with dots. A module's tensors have the names of its state_dict().
// Throws Error where two tensors would have the same name, and for tensors that are not understood.
Contents TensorsOf(const Object& root);

}  // namespace cohort::trainer::pt
