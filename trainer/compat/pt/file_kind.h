// Names the formats of files that are given by mistake.
#pragma once

#include <cstdint>
#include <string_view>

#include "cohort/trainer/compat/pt/archive.h"

namespace cohort::trainer::pt {

// As many of a file's first bytes tell its kind.
inline constexpr uint64_t kKindBytes = 1024;

// Throws Error, which says what a file that begins so is, and how to make a `.pt` file of it.
[[noreturn]] void RefuseOtherKinds(std::string_view head);
// Throws Error for zip archives that torch.save did not write: TorchScript, numpy, others.
void RefuseOtherArchives(const Archive& archive);

}  // namespace cohort::trainer::pt
