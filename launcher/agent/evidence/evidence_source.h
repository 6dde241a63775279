// Something outside of Cohort that may know why a node's ranks hang or die, such as a service of a library they use.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cohort::launcher {

// A rank that runs, as a source sees it.
struct EvidenceRank {
  uint32_t rank = 0;
  pid_t group = 0;                       // the process group of the rank
  std::vector<std::string> environment;  // NAME=VALUE, as the rank was started with it
};

struct Evidence {
  std::string source;  // as the report names it: "NCCL RAS"
  uint32_t rank = 0;   // the rank that it came from
  std::string text;    // lines, as they came: not yet safe for a terminal
};

class EvidenceSource {
 public:
  using Done = std::function<void(Evidence evidence)>;

  virtual ~EvidenceSource() = default;
  // Begins to look. Returns false where there is nothing, at once and without a word. Otherwise `done` is called once
  // within `limit`, never from within this call, unless the object goes before. An empty text means that nothing came.
  // One call at a time. Never blocks: an agent's loop calls it.
  virtual bool Ask(const std::vector<EvidenceRank>& ranks, std::chrono::milliseconds limit, Done done) = 0;
};

// Returns the line "NCCL RAS WORDS:" and at most `most` lines of the text as "  | LINE". Pure.
std::vector<std::string> LinesOf(const Evidence& evidence, const std::string& words, size_t most);

// Returns the value of a variable in a list of NAME=VALUE; empty where it is not there.
std::string ValueIn(const std::vector<std::string>& environment, const std::string& name);

}  // namespace cohort::launcher
