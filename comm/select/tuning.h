// The table by which the selector predicts times and chooses: figures of a cost model, and rules that name the
// algorithm for a range of sizes. It must be equal on all members of a group; its hash is in the signature of every
// call. Times follow the alpha-beta-gamma model of Hockney, extended by a cost per message.
//
// COHORT_TUNING, CommunicatorOptions::tuning and `plan explain --tuning` take the table in one grammar, in which
// ToString prints it too:
//
//   table   = [ item { (";" | "," | blank | newline) item } ]
//   item    = figure "=" number               local.alpha_us=0.3
//           | collective ":" range "=" algorithm [ "@" level ]
//   range   = "*" | size "-" [ size ]         bytes of the block, from the first up to below the second
//   size    = digits [ "K" | "M" | "G" ]      of 1024
//   level   = "local" | "remote"              groups on one host, or across hosts; both unless named
//
//   remote.alpha_us=30; all_reduce:0-4K=flat@local; all_reduce:1M-=ring
//
// The last rule that fits a call decides. A rule is passed over when its algorithm can't serve the group, for example
// because it needs a power of two.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/comm/types.h"

namespace cohort::comm {

// One level of the machine: ranks of one host, or ranks of different hosts.
struct LevelTuning {
  double alpha_us = 0;     // from the start of a small message to its arrival
  double message_us = 0;   // a rank's time to send and receive each further message of the same round
  double gigabytes_s = 1;  // of one rank's port, in one direction
  // A message takes the cheaper of two ways. It is copied through the transport's memory at `copied_gigabytes_s`, or it
  // goes straight at `gigabytes_s` after the two sides have met, which takes `large_us`. On one host these figures are
  // for private memory; WindowTuning has those for windows.
  double large_us = 0.01;
  double copied_gigabytes_s = 1;
  double uncached_gigabytes_s = 1;  // replaces gigabytes_s for data that no cache holds
  // Between hosts: the share of a byte's time for which a CPU is busy, at both ends. Near 1 for TCP in the kernel, near
  // 0 for network cards that fetch the data themselves.
  double cpu_share = 0.01;
  // Additional time of a round where there are more ranks than CPUs, times the ranks per CPU: the others have to run.
  double switch_us = 1.5;
};

// Figures of algorithms that reach into other ranks' private memory (trait single_copy).
struct DirectTuning {
  double access_us = 2.4;  // to begin reading or writing one other rank's memory, in addition to its bytes
  double gigabytes_s = 11.3;
  double uncached_gigabytes_s = 9.19;
};

// Figures of ranks of one host that have windows (comm/window.h). They replace large_us, gigabytes_s and
// uncached_gigabytes_s of `local`, and all of `direct`.
struct WindowTuning {
  double large_us = 0.324;
  double large_gigabytes_s = 45.5;
  double large_uncached_gigabytes_s = 14.9;
  DirectTuning direct = {.access_us = 0.0543, .gigabytes_s = 46.7, .uncached_gigabytes_s = 20.7};
};

// Figures of private memory where level 3 caches are near ones, as AMD's, and its ranks may share one or not
// (GroupTopology::near_caches): messages then go whichever way is quickest for a pair. They replace the figures of the
// same names of `local`, and were fitted to ranks that share a cache and to ranks that do not, together.
struct NearTuning {
  double copied_gigabytes_s = 7.54;
  double large_us = 25.8;
  double gigabytes_s = 638;  // as fitted: beyond large_us a byte costs next to nothing
  double uncached_gigabytes_s = 7.9;
};

enum class TuningLevel : uint8_t { kBoth, kLocal, kRemote };

// A rule: blocks of [from, below) bytes use this algorithm.
struct TuningRule {
  CollectiveKind kind = CollectiveKind::kBarrier;
  int64_t from = 0;
  int64_t below = std::numeric_limits<int64_t>::max();  // the largest number means no end
  std::string algorithm = {};
  TuningLevel level = TuningLevel::kBoth;

  bool Fits(CollectiveKind call, int64_t bytes, bool local) const {
    return call == kind && bytes >= from && (bytes < below || below == std::numeric_limits<int64_t>::max()) &&
           (level == TuningLevel::kBoth || (level == TuningLevel::kLocal) == local);
  }
};

struct Tuning {
  LevelTuning local = {.alpha_us = 0.553,
                       .message_us = 0.08,
                       .gigabytes_s = 14.2,
                       .large_us = 2.72,
                       .copied_gigabytes_s = 6.85,
                       .uncached_gigabytes_s = 3.93,
                       .switch_us = 1.53};
  LevelTuning remote = {.alpha_us = 13.7,
                        .message_us = 4.79,
                        .gigabytes_s = 3.97,
                        .large_us = 1.62,
                        .copied_gigabytes_s = 0.001,  // never the cheaper way: UCX copies whatever comes by TCP
                        .uncached_gigabytes_s = 2.71,
                        .cpu_share = 0.991,
                        .switch_us = 0.353};
  DirectTuning direct = {};
  WindowTuning window = {};
  NearTuning near = {};
  // Rate of reading operands and writing the result of a reduction, beyond the move that brought the data.
  double reduce_gigabytes_s = 109;
  // Bytes of input and output together that a rank's caches hold.
  int64_t cache_bytes = 770000;
  // The longest publish that is one write for all local readers: Fanout::max_bytes of the shm transport.
  int64_t fanout_bytes = 8192;
  // Pipelined algorithms cut no smaller pieces than these, and at most max_pieces of them.
  int64_t local_piece_bytes = 32768;
  int64_t remote_piece_bytes = 262144;
  int32_t max_pieces = 64;

  std::vector<TuningRule> rules = {};

  // Returns every figure and rule, "local.alpha_us=0.3; local.message_us=0.1; ...". Parse makes an equal table of it.
  std::string ToString() const;
  // Equal for equal tables, never 0.
  uint64_t Hash() const;
  // Returns the built-in table with the figures named in `text` replaced and its rules added. kInvalidArgument names
  // the position, what stands there, and what may stand there. A figure, and a rule of the same range and level, stands
  // there once.
  static absl::StatusOr<Tuning> Parse(std::string_view text);
  // Does the same on top of `base`. A rule takes the place of the base's for the same range and level.
  static absl::StatusOr<Tuning> Parse(std::string_view text, Tuning base);
};

}  // namespace cohort::comm
