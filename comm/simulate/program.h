// A plan without its memory: what the simulator needs of it. Peers are counted from the own rank, so that ranks that do
// the same have the same program.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan.h"

namespace cohort::comm {

enum class OpKind : uint8_t { kSend, kPublish, kRecv, kWork };

struct Op {
  OpKind kind = OpKind::kWork;
  bool published = false;
  int32_t offset = 0;    // of the peer from the own rank, modulo the size
  int32_t chunks = 0;    // sent or received
  int32_t combined = 0;  // chunks that pass through the reduction kernel afterwards
  int32_t fence = -1;    // starts when all sends but the last `fence` ones have arrived; -1: need not wait

  bool operator==(const Op&) const = default;
};

// The operations of one lane of one rank.
using Program = std::vector<Op>;

// A program for each lane. Copies cost nothing here.
std::vector<Program> ProgramsOf(const Plan& plan);

// The peers that a program receives from.
struct Peers {
  explicit Peers(const Program& program);
  // Place of an offset in `offsets`, or their number where it is none of them.
  size_t Find(int32_t offset) const;

  std::vector<int32_t> offsets;  // sorted
  std::vector<uint32_t> of_op;   // by operation; of receives: the place of its peer
};

// Operations [begin, end) repeat themselves every `period` operations.
struct Repetition {
  size_t begin = 0, end = 0, period = 1;
};

// The stretches of at least `least` operations that repeat with a period of at most four, in order.
std::vector<Repetition> FindRepetitions(const Program& program, size_t least);

}  // namespace cohort::comm
