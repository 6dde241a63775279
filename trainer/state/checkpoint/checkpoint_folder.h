// The folder that a run keeps its checkpoints in: which there are, and which of them go.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace cohort::trainer {

// Subdirectories of `root` that hold a checkpoint, those with the highest number at the end of their name first; none
// where there is no `root`. One whose index is lost is among them, so that reading it says so. Local. Throws
// DistributedError, which names it, where it can't be read.
std::vector<std::string> CheckpointsIn(const std::string& root);

// Removes checkpoints beside `newest` that have its name with lower numbers at the end, as "step-7" beside "step-12",
// but for the `keep` - 1 highest; none where `keep` is 0. Others stay: those of higher numbers, which another run has
// written, those without an index, and those that something else was put into. Those of lower numbers may be another
// run's, too, where a run has begun anew in a used folder: with `among`, names in that folder, only those go and count.
// Local: one rank does it, when `newest` is complete. Throws DistributedError when one can't be removed, which need not
// end training.
void PruneCheckpoints(const std::string& newest, int64_t keep,
                      const std::optional<std::set<std::string>>& among = std::nullopt);

}  // namespace cohort::trainer
