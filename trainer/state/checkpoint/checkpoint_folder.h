// The folder that holds a run's checkpoints: lists them and removes old ones.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace cohort::trainer {

// Returns subdirectories of `root` that hold a checkpoint. The ones with the highest number at the end of their name
// come first. Without a `root` there are none. A checkpoint whose index is lost is listed, so that reading it reports
// the loss. Local. Throws DistributedError, naming the folder, if it cannot be read.
std::vector<std::string> CheckpointsIn(const std::string& root);

// Removes checkpoints beside `newest` that have its name with lower numbers at the end, as "step-7" beside "step-12".
// The `keep` - 1 highest of them stay. With `keep` 0 none is removed. These stay too:
// - checkpoints with higher numbers, which another run has written,
// - folders without an index,
// - folders that something else was put into.
//
// Lower numbers may belong to another run too, if a run has begun again in a used folder. With `among`, only those
// names in the folder count and may be removed. Local: one rank calls it when `newest` is complete. Throws
// DistributedError when one cannot be removed, which need not end training.
void PruneCheckpoints(const std::string& newest, int64_t keep,
                      const std::optional<std::set<std::string>>& among = std::nullopt);

}  // namespace cohort::trainer
