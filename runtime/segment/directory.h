// A rank's directory: an open-addressing table from 64-bit keys to blocks. Its owner writes, one call at a time;
// anybody reads at any time, without waiting for the owner, who may have died in the middle of a change.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

// Owner. Adds a key; kAlreadyExists, kInvalidArgument (a reserved key) or kResourceExhausted.
absl::Status DirectoryInsert(DirectoryEntry* table, uint64_t key, SegmentBlock block);
// Owner. Forgets a key, if it is there.
void DirectoryErase(DirectoryEntry* table, uint64_t key);
// Anyone.
std::optional<SegmentBlock> DirectoryFind(const DirectoryEntry* table, uint64_t key);

}  // namespace cohort::runtime
