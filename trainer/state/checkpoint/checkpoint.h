// Checkpoints that are written by all ranks and read by any number of others.
//
//   directory/index.json                          which elements of which tensor lie where; checksums; named values
//   directory/rank-00000-of-00004.safetensors     what rank 0 wrote: pieces of tensors, row by row
//
// A piece is elements [begin, end) of a tensor that is seen as one row. A reader says which elements of which tensors
// it wants, and takes them from whichever files have them: so a checkpoint of four ranks' shards fills one process, six
// ranks' shards or a DDP model. Files appear under their directory's name only when all of them are complete and on
// disk; a crash, a full disk or a kill while saving leaves the last checkpoint as it was. (Where the file system can't
// exchange two directories, what is replaced is directory.replaced for a moment. A kill then leaves it there, where it
// is read as directory.)
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

// All of a tensor, which all ranks of `group` hold.
CheckpointTensor ReplicatedTensor(const std::string& name, const at::Tensor& tensor, const comm::Communicator& group);

// How long ranks wait for the slowest one's disk.
inline constexpr std::chrono::nanoseconds kTogetherTimeout = std::chrono::hours(1);

using CheckpointValues = std::map<std::string, std::string>;

// Writes `tensors` of all ranks, and rank 0's `values`, as `directory`; a checkpoint that was there is replaced at
// once, and anything else is refused. Its parent, made if need be, must be the same directory on all ranks' machines.
// Collective over `world`; blocks. Throws DistributedError on every rank when one has failed, also where another job
// writes the same checkpoint meanwhile: the cause names its file. Nothing of it is left then, and `directory` is as it
// was. Throws c10::Error when a tensor is incomplete or ranks disagree about it. Where a rank is not done `timeout`
// after another one, the group fails.
void SaveCheckpoint(comm::Communicator& world, const std::string& directory,
                    const std::vector<CheckpointTensor>& tensors, const CheckpointValues& values,
                    std::chrono::nanoseconds timeout = kTogetherTimeout);

// What a checkpoint holds.
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

  // Reads directory/index.json. Local. Throws DistributedError: kNotFound, or kDataLoss that names the file and what is
  // wrong with it, also that there are tensors without an index.
  static CheckpointIndex Read(const std::string& directory);
  // What rank 0 of `world` reads there, on all ranks: what the others see of a directory that is replaced, or late on a
  // network's file system, may be another checkpoint's. Collective; blocks. Throws as Read does, on every rank, and
  // DistributedError.
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

// Fills `tensors` from the checkpoint `directory`, whose index that is. Local. Throws DistributedError kDataLoss (what
// is damaged) and c10::Error (a tensor that is not there, has other sizes or another type, or brings memory for more or
// fewer elements than it says).
void LoadTensors(const std::string& directory, const CheckpointIndex& index,
                 const std::vector<CheckpointTensor>& tensors);

// Writes the checkpoint's tensors whose names begin with `prefix` as one safetensors file, whole and by their names
// without the prefix: for "model." what Python's safetensors.torch.load_file gives to Module.load_state_dict. What
// modules share is written once for each of its names. `file` appears when it is complete; a file that was there is
// replaced, and anything else refused. Needs memory for all of them. Local: one rank does it. Throws as LoadTensors
// does, and DistributedError when the file can't be written.
void ExportSafetensors(const std::string& directory, const std::string& file, const std::string& prefix = "model.");

// Throws on every rank of `world` what one of them threw in `work`: with it ranks agree on what they did by themselves.
// Collective; blocks: a rank that is done waits up to `timeout` for the others, whose failure to come fails the group.
void TogetherOrNot(comm::Communicator& world, const std::string& what, const std::function<void()>& work,
                   std::chrono::nanoseconds timeout = kTogetherTimeout);

// CheckpointsIn as rank 0 of `world` finds them, on all ranks, each under its own `root`. Collective; blocks. Throws on
// every rank what rank 0 met, and DistributedError.
std::vector<std::string> CheckpointsTogether(comm::Communicator& world, const std::string& root,
                                             std::chrono::nanoseconds timeout = kTogetherTimeout);

}  // namespace cohort::trainer
