// Checkpoints that all ranks write and any number of other ranks read.
//
//   directory/index.json                          file and offset of all elements; checksums; named values
//   directory/rank-00000-of-00004.safetensors     written by rank 0: boxes of tensors
//
// A box is a rectangular part of a tensor (placement/placement.h). A reader says which boxes of which tensors it wants,
// and takes them from any files that have parts of them. A checkpoint of four ranks' shards thus fills one process, six
// ranks' shards, tensor-parallel ranks or a DDP model. Checksums are by small tiles: a reader reads little more than it
// wants (checkpoint_tiles.h).
//
// Files appear under their directory's name only when all of them are complete and on disk. A crash, a full disk or a
// kill while saving leaves the last checkpoint as it was. Some file systems cannot exchange two directories. There the
// old checkpoint is directory.replaced for a moment. A kill then leaves it there, where it is read as directory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/placement/placement.h"
#include "cohort/trainer/state/checkpoint/checkpoint_folder.h"
#include "cohort/trainer/state/checkpoint/checkpoint_index.h"

namespace cohort::trainer {

// A rank's boxes of a tensor.
struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> sizes;  // of the whole
  std::vector<Box> boxes;      // of the whole, and where they lie in `data`; none: nothing of it is here
  // Has the boxes' elements and no others, in any memory format; read by saving, written by loading. It may have other
  // dimensions than the tensor if there is one box and it is contiguous.
  at::Tensor data;
  // Ranks that hold the same boxes share the writing: this one is number `replica` of `replicas`.
  int replica = 0;
  int replicas = 1;
};

// The whole of a tensor, or rows [begin, end) of its first dimension, as one box.
std::vector<Box> WholeBox(const std::vector<int64_t>& sizes);
std::vector<Box> RowsBox(const std::vector<int64_t>& sizes, int64_t begin, int64_t end);

// Throws c10::Error unless `data` has as many elements as the boxes.
void CheckLength(const CheckpointTensor& tensor);

// Returns all of a tensor that all ranks of `group` hold.
CheckpointTensor ReplicatedTensor(const std::string& name, const at::Tensor& tensor, const comm::Communicator& group);

// The parts of `tensors` that this rank writes: each has one box, and `data` is a view of its sizes.
std::vector<CheckpointTensor> OwnParts(const std::vector<CheckpointTensor>& tensors);

// Writes `tensors` of all ranks, and rank 0's `values`, as `directory`. It replaces a checkpoint at once and refuses to
// replace anything else. The parent is made if need be, and must be the same directory on all ranks' machines.
// Collective over `world`; blocks.
//
// Throws DistributedError on every rank when one has failed. It does so too when another job writes the same checkpoint
// meanwhile: the cause names its file. Then nothing of the new one is left, and `directory` is as it was. Throws
// c10::Error when a tensor is incomplete or ranks disagree about it. The group fails if a rank is not done `timeout`
// after another one.
void SaveCheckpoint(comm::Communicator& world, const std::string& directory,
                    const std::vector<CheckpointTensor>& tensors, const CheckpointValues& values,
                    std::chrono::nanoseconds timeout = kTogetherTimeout);

// Fills `tensors` from the checkpoint `directory`, whose index is `index`. Returns the bytes of elements that it has
// read for that. Local. Throws DistributedError kDataLoss, which names the damage. Throws c10::Error for a tensor that
// is missing, has other sizes or another type, or brings memory for more or fewer elements than its boxes have.
int64_t LoadTensors(const std::string& directory, const CheckpointIndex& index,
                    const std::vector<CheckpointTensor>& tensors);

// Writes the checkpoint's tensors whose names begin with `prefix` as one safetensors file. They are whole and named
// without the prefix. With "model." Python's safetensors.torch.load_file gives them to Module.load_state_dict. Shared
// tensors are written once for each of their names. `file` appears when it is complete. A file of that name is
// replaced, and anything else is refused. It needs memory for all tensors. Local: one rank does it. Throws as
// LoadTensors does, and DistributedError when the file cannot be written.
void ExportSafetensors(const std::string& directory, const std::string& file, const std::string& prefix = "model.");

// Calls `work` and throws on every rank of `world` the error that one of them threw in it. Ranks thus agree on work
// that each did by itself. Collective; blocks. A rank that is done waits up to `timeout` for the others; if they do not
// come, the group fails.
void TogetherOrNot(comm::Communicator& world, const std::string& what, const std::function<void()>& work,
                   std::chrono::nanoseconds timeout = kTogetherTimeout);

// Returns every rank's text, by rank. Errors begin with `what`. Collective; blocks. Throws DistributedError.
std::vector<std::string> GatherTexts(comm::Communicator& world, const std::string& mine, const std::string& what,
                                     std::chrono::nanoseconds timeout = kTogetherTimeout);

// Returns on all ranks CheckpointsIn as rank 0 of `world` finds them, each under the rank's own `root`. Collective;
// blocks. Throws on every rank the error that rank 0 met, and DistributedError.
std::vector<std::string> CheckpointsTogether(comm::Communicator& world, const std::string& root,
                                             std::chrono::nanoseconds timeout = kTogetherTimeout);

}  // namespace cohort::trainer
