// The folder that a run keeps its checkpoints in: which there are, and which of them go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::trainer {

// Subdirectories of `root` that hold a checkpoint, those with the highest number at the end of their name first; none
// where there is no `root`. One whose index is lost is among them, so that reading it says so. Local. Throws
// DistributedError, which names it, where it can't be read.
std::vector<std::string> CheckpointsIn(const std::string& root);

// Removes checkpoints beside `newest` that have its name with lower numbers at the end, as "step-7" beside "step-12",
// but for the `keep` - 1 highest; none where `keep` is 0. Others stay: those of higher numbers, which another run has
// written, those without an index, and those that something else was put into. Local: one rank does it, when `newest`
// is complete. Throws DistributedError.
void PruneCheckpoints(const std::string& newest, int64_t keep);

}  // namespace cohort::trainer
