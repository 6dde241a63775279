// CheckpointIndex: the list of a checkpoint's contents, index.json. It says in which file each box of each tensor lies.
//
// Its format is cohort-checkpoint-3: boxes with checksums by tiles and strips (checkpoint_tiles.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/placement/placement.h"
#include "cohort/trainer/state/checkpoint/checkpoint_tiles.h"

namespace cohort::trainer {

// The time that ranks wait for the slowest one's disk.
inline constexpr std::chrono::nanoseconds kTogetherTimeout = std::chrono::hours(1);

using CheckpointValues = std::map<std::string, std::string>;

class CheckpointIndex {
 public:
  struct Piece {
    Box box;  // of the whole
    std::string file;
    int64_t offset = 0;            // of its first byte in the file
    std::vector<CheckedCut> cuts;  // at least one
    int64_t numel() const { return box.numel(); }
  };
  struct Tensor {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;
    std::vector<Piece> pieces;  // without gaps or overlaps
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
  const std::map<std::string, File>& files() const { return files_; }
  const CheckpointValues& values() const { return values_; }

  // For saving: adds what a rank has written (RankText), checks that boxes fill all tensors once, and writes the text
  // of index.json. Throw c10::Error, which names the tensor.
  void Add(const std::string& rank_text);
  void CheckComplete() const;
  void set_values(CheckpointValues values) { values_ = std::move(values); }
  std::string Write() const;

 private:
  static CheckpointIndex Parse(const std::string& text, const std::string& path);
  void CheckRead(const std::string& path) const;

  std::map<std::string, Tensor> tensors_;
  std::map<std::string, File> files_;
  CheckpointValues values_;
};

// Returns what two boxes of one tensor have in common. Without elements: nothing.
Box Intersection(const Box& a, const Box& b);

}  // namespace cohort::trainer
