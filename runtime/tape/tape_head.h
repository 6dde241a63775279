// The head of a tape: whose it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::runtime {

// Changes with everything that a tape's bytes mean: entries, call records, the numbers of comm/types.h.
inline constexpr uint32_t kTapeFormat = 2;

struct TapeHead {
  std::string version = {};  // of the Cohort that wrote it
  uint64_t id = 0;           // at random; equal in all parts
  std::string welcome = {};  // v1::Welcome, as the agent's: the rank's identity without its secret
  std::string job_id = {};   // out of it, as the next four
  int rank = 0;
  int world_size = 1;
  uint64_t epoch = 1;
  uint64_t segment_epoch = 1;
  std::vector<std::string> environment = {};  // "NAME=VALUE": the rank's place, as dlaunch told it
  int64_t started = 0;                        // wall clock, in seconds
  uint64_t part = 0;                          // 0: the first file
  uint64_t first_call = 0;                    // calls that the rank had begun before this file
  uint64_t keep_steps = 0;                    // 0: everything is kept
};

// The head as the body of a tape's first entry. `welcome` is one.
std::string EncodeTapeHead(const TapeHead& head);
// kDataLoss: it is none. kFailedPrecondition: another format or version wrote it; the text says what reads it.
absl::StatusOr<TapeHead> DecodeTapeHead(std::string_view body);

// The answer to a lookup in the job's store, or in its variables.
struct TapeLookup {
  enum class Kind : uint8_t { kStoreGet = 1, kStorePut = 2, kVariable = 3 };
  Kind kind = Kind::kStoreGet;
  int call = 0;  // kVariable: VariableCall::Kind
  std::string key = {};
  absl::Status status = {};
  bool found = false;
  std::string value = {};
  int64_t number = 0;
};

std::string EncodeTapeLookup(const TapeLookup& lookup);
// kDataLoss: it is none.
absl::StatusOr<TapeLookup> DecodeTapeLookup(std::string_view body);

}  // namespace cohort::runtime
