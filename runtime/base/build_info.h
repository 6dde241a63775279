// How this copy of Cohort was built, for `--version` of its programs.
#pragma once

#include <string>

namespace cohort::runtime {

// "0.1.0, commit 1f2e3d4c, with UCX, without CUDA and NCCL". The commit is that of the last configuration of the build
// ("-dirty": with changes), and left out where that was no git repository.
std::string DescribeBuild();

}  // namespace cohort::runtime
