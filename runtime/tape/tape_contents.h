// The contents of a tape, in the order in which they were recorded. Results refer to the bytes that were read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/tape/tape_head.h"

namespace cohort::runtime {

struct TapedGroup {
  uint64_t id = 0;
  std::vector<int> members = {};  // world ranks, by group rank
};

struct TapedCall {
  uint32_t group = 0;  // in TapeContents::groups
  uint32_t site = 0;   // in TapeContents::sites
  uint64_t count = 0;
  uint64_t tag = 0;
  uint64_t received = 0;                   // bytes that it gets from others
  uint16_t input = 0;                      // a hash of what the rank gave to it
  bool unequal = false;                    // a variable-count form
  bool done = false;                       // it has a result
  std::span<const std::byte> counts = {};  // of an unequal one: see PutCounts
  std::span<const std::byte> result = {};  // the bytes that it got
};

struct TapedFailure {
  uint32_t group = 0;
  absl::Status status = {};
};

struct TapedStep {
  uint64_t step = 0;
  bool stop = false;
};

struct TapeEvent {
  enum class Kind : uint8_t { kBegin, kResult, kFailure };
  Kind kind = Kind::kBegin;
  size_t index = 0;  // of the call, or of the failure
};

enum class TapeEnding : uint8_t {
  kStops,    // the last entry is whole: the rank was killed behind it, or its disk was full
  kCut,      // the last entry is not whole: the rank was killed while it wrote it
  kInOrder,  // the rank has ended in order
};

struct TapeContents {
  TapeHead head = {};
  std::unordered_map<uint32_t, TapedGroup> groups = {};
  std::unordered_map<uint32_t, CallRecord> sites = {};
  std::vector<TapedCall> calls = {};  // in the order in which they began
  std::vector<TapedFailure> failures = {};
  std::vector<TapeEvent> events = {};
  std::vector<TapeLookup> lookups = {};
  std::vector<TapedStep> steps = {};
  bool several_threads = false;  // calls were made by more than one thread
  uint64_t left_out = 0;         // calls between the first part and the next that is there (--tape-last)
  size_t behind_gap = 0;         // the first call behind them
  TapeEnding ending = TapeEnding::kStops;
  uint64_t bytes = 0;     // of all files
  uint64_t received = 0;  // bytes of all results

  // Returns what a black box would hold of `call`, but for times and numbers.
  CallRecord RecordOf(const TapedCall& call) const;
};

// The counts of an unequal call; empty where they are damaged.
struct TapedCounts {
  uint64_t bytes = 0;
  std::vector<int64_t> in = {};
  std::vector<int64_t> out = {};
};
std::optional<TapedCounts> CountsOf(const TapedCall& call);

}  // namespace cohort::runtime
