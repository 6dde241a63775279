// For what takes every parameter as a whole one: shards would be taken for it without a word.
#pragma once

#include <string>

#include "torch/nn/module.h"

namespace cohort::trainer {

// Throws c10::Error, "<who>: module <its name> is sharded: ...; <instead>", where the parameters of `module` or of a
// module in it are shards: of a wrapper, of what one wraps, or of one that was sharded where it is. Also where one rank
// has all of them: a program is told the same on any number of ranks. Local.
void RefuseShards(const torch::nn::Module& module, const std::string& who, const std::string& instead);

}  // namespace cohort::trainer
