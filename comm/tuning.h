// The figures that the selector predicts times with: one small table, equal on all members of a group (its hash is in
// the signature of every call). Times follow the alpha-beta-gamma model of Hockney, extended by a cost per message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cohort::comm {

// One level of the machine: ranks of one host, or ranks of different hosts.
struct LevelTuning {
  double alpha_us = 0;     // from the start of a small message to its arrival
  double message_us = 0;   // a rank's own time to send and receive each further message of the same round
  double gigabytes_s = 1;  // of one rank's port, in one direction
};

struct Tuning {
  LevelTuning local = {.alpha_us = 0.3, .message_us = 0.1, .gigabytes_s = 5.0};
  LevelTuning remote = {.alpha_us = 15.0, .message_us = 6.0, .gigabytes_s = 2.0};
  // Reading operands and writing the result of a reduction, beyond the move that brought the data.
  double reduce_gigabytes_s = 10.0;
  // What a round costs on top, times the ranks per CPU, where there are more ranks than CPUs: the others have to run.
  double switch_us = 1.0;
  // The longest publish that is one write for all local readers: Fanout::max_bytes of the shm transport.
  int64_t fanout_bytes = 8192;
  // Pipelined algorithms cut no smaller pieces than this, and no more of them.
  int64_t local_piece_bytes = 32768;
  int64_t remote_piece_bytes = 65536;
  int32_t max_pieces = 64;

  // "local.alpha_us=0.3 local.message_us=0.1 ...": every figure, in a form that Parse takes.
  std::string ToString() const;
  // Equal for equal tables, never 0.
  uint64_t Hash() const;
  // The built-in figures with those named in `text` replaced; "name=value" separated by spaces or commas.
  // kInvalidArgument names the figure that is unknown, no positive number, or out of range.
  static absl::StatusOr<Tuning> Parse(std::string_view text);
};

}  // namespace cohort::comm
