// Bootstraps that record a rank, and that replay one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::runtime {

// The wishes of dlaunch --tape.
struct TapeOrder {
  std::string folder = {};
  std::vector<int> ranks = {};                // world ranks; empty: all
  uint64_t keep_steps = 0;                    // --tape-last; 0: everything is kept
  std::vector<std::string> environment = {};  // "NAME=VALUE": the rank's place, kept in the tape's head
};

// Joins as `bootstrap` does, and writes a tape of this rank if it is one of those in the order. A tape that can't be
// written is said on stderr, and the rank goes on without.
std::unique_ptr<Bootstrap> BootstrapRecorded(std::unique_ptr<Bootstrap> bootstrap, TapeOrder order);

// Takes the place of the rank that the tape at `path` is of, without its peers: "DIR/rank-3.epoch-1.tape". Of the
// second runtime of this process it takes "DIR/rank-3.epoch-1.runtime-2.tape", and so on. Join fails where the tape
// can't be read, is damaged, or was written by another version. A process that makes fewer calls than the tape holds
// ends with an error (replay_progress.h).
std::unique_ptr<Bootstrap> BootstrapFromTape(std::string path);

}  // namespace cohort::runtime
