// Checkpoints that all ranks write and any number of other ranks read.
//
//   directory/index.json                          file and offset of all elements; checksums; named values
//   directory/rank-00000-of-00004.safetensors     written by rank 0: pieces of tensors, row by row
//
// A piece is elements [begin, end) of a tensor that is seen as one row. A reader says which elements of which tensors
// it wants, and takes them from any files that have them. A checkpoint of four ranks' shards thus fills one process,
// six ranks' shards or a DDP model.
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
#include "cohort/trainer/state/checkpoint/checkpoint_folder.h"

namespace cohort::trainer {

// A rank's elements of a tensor.
struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> sizes;  // of the whole
  int64_t begin = 0;           // elements [begin, end) of the whole, row by row
  int64_t end = 0;
  at::Tensor data;  // has end - begin elements, in any memory format; read by saving, written by loading
  // Ranks that hold the same elements share the writing: this one is number `replica` of `replicas`.
  int replica = 0;
  int replicas = 1;
};

// Throws c10::Error unless `data` has as many elements as the tensor says.
void CheckLength(const CheckpointTensor& tensor);

// Returns all of a tensor that all ranks of `group` hold.
CheckpointTensor ReplicatedTensor(const std::string& name, const at::Tensor& tensor, const comm::Communicator& group);

// The time that ranks wait for the slowest one's disk.
inline constexpr std::chrono::nanoseconds kTogetherTimeout = std::chrono::hours(1);

using CheckpointValues = std::map<std::string, std::string>;

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

// The list of a checkpoint's contents.
class CheckpointIndex {
 public:
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
    std::string file;
    int64_t offset = 0;
    std::string checksum;
  };
  struct Tensor {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;
    std::vector<Piece> pieces;  // in order, without gaps
  };
  struct File {
    int64_t bytes = 0;
    int64_t header_bytes = 0;
    std::string header_checksum;
  };

  // Reads directory/index.json. Local. Throws DistributedError: kNotFound, or kDataLoss that names the file and its
  // defect. Tensors without an index are kDataLoss too.
  static CheckpointIndex Read(const std::string& directory);
  // Returns on all ranks the index that rank 0 of `world` reads. The others might see another checkpoint's: the
  // directory is being replaced, or a network file system is late. Collective; blocks. Throws as Read does, on every
  // rank, and DistributedError.
  static CheckpointIndex ReadTogether(comm::Communicator& world, const std::string& directory,
                                      std::chrono::nanoseconds timeout = kTogetherTimeout);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const CheckpointValues& values() const { return values_; }

 private:
  friend void SaveCheckpoint(comm::Communicator&, const std::string&, const std::vector<CheckpointTensor>&,
                             const CheckpointValues&, std::chrono::nanoseconds);
  friend void LoadTensors(const std::string&, const CheckpointIndex&, const std::vector<CheckpointTensor>&);
  static CheckpointIndex Parse(const std::string& text, const std::string& path);
  std::string Write() const;
  void Add(const std::string& rank_text);
  void CheckComplete() const;
  void CheckRead(const std::string& path) const;

  std::map<std::string, Tensor> tensors_;
  std::map<std::string, File> files_;
  CheckpointValues values_;
};

// Fills `tensors` from the checkpoint `directory`, whose index is `index`. Local. Throws DistributedError kDataLoss,
// which names the damage. Throws c10::Error for a tensor that is missing, has other sizes or another type, or brings
// memory for more or fewer elements than it says.
void LoadTensors(const std::string& directory, const CheckpointIndex& index,
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

// Returns on all ranks CheckpointsIn as rank 0 of `world` finds them, each under the rank's own `root`. Collective;
// blocks. Throws on every rank the error that rank 0 met, and DistributedError.
std::vector<std::string> CheckpointsTogether(comm::Communicator& world, const std::string& root,
                                             std::chrono::nanoseconds timeout = kTogetherTimeout);

}  // namespace cohort::trainer
