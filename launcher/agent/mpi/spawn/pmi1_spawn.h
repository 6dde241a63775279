// The lines by which a rank asks for new processes in PMI-1: a block for each program, from "mcmd=spawn" to "endcmd".
//
//   mcmd=spawn  nprocs=2  execname=./worker  totspawns=1  spawnssofar=1  arg1=-v  argcnt=1
//   preput_num=1  preput_key_0=k  preput_val_0=v  info_num=1  info_key_0=wdir  info_val_0=/tmp  endcmd
//
// each in a line. Takes any bytes, and keeps no more than kMostBytes of them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/agent/mpi/spawn/spawn_request.h"

namespace cohort::launcher {

class Pmi1Spawn {
 public:
  static constexpr size_t kMostBytes = 256u << 10;
  static constexpr size_t kMostPrograms = 1024;

  // A line behind "mcmd=spawn". After the "endcmd" of the last block: the request, or why it is none, and this object
  // is as new.
  std::optional<absl::StatusOr<SpawnRequest>> OnLine(std::string_view line);
  // Whether lines belong to a block.
  bool in_block() const { return in_block_; }
  void BeginBlock() { in_block_ = true; }

 private:
  using Words = std::vector<std::pair<std::string, std::string>>;

  void TakeLine(std::string_view line);
  std::string_view Get(std::string_view name) const;
  // Adds the block's program, or sets why_.
  void TakeBlock();
  // The pairs of "info_key_0", "info_val_0" and so on.
  Words PairsOf(const std::string& what) const;

  bool in_block_ = false;
  int block_ = 1;  // of how many
  int blocks_ = 1;
  Words words_;  // of the block
  size_t bytes_ = 0;
  SpawnRequest request_;
  std::string why_;  // it is refused
};

}  // namespace cohort::launcher
