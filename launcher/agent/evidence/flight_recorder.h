// The dumps of c10d's flight recorder: PyTorch's process groups keep their latest collectives, and write them to a file
// when one times out or fails. Only names and sizes are read: a dump is a pickle, whose reading can run a stranger's
// code.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/evidence/evidence_source.h"
#include "cohort/launcher/agent/evidence/slow_answer.h"
#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

// Returns where a rank would write its dump: the prefix that its environment names, or else those of PyTorch's
// versions, with the rank's number. Pure.
std::vector<std::string> DumpPaths(const EvidenceRank& rank);

// Returns "PATH: BYTES bytes, of rank N" where the path is a plain file of this user that was written since then; else
// nothing. May hang in the file system.
std::string DescribeDump(const std::string& path, uint32_t rank, std::chrono::system_clock::time_point since);

class FlightRecorder : public EvidenceSource {
 public:
  FlightRecorder(std::string name, EventLoop* loop) : name_(std::move(name)), answer_(loop, 64u << 10) {}

  // Says nothing before ranks are told to end: they may be writing, and others would wait.
  bool Ask(const EvidenceQuestion& question, Done done) override;

 private:
  const std::string name_;
  SlowAnswer answer_;
};

}  // namespace cohort::launcher
