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

// A rank as a source sees it.
struct EvidenceRank {
  uint32_t rank = 0;
  pid_t group = 0;                            // the process group of the rank
  std::vector<std::string> environment = {};  // NAME=VALUE, as the rank was started with it
  pid_t program = 0;                          // the process that takes part; 0: the rank has ended
  std::string working_directory = {};         // of its start
  bool wanted = true;                         // by the one who asks; services that know the whole job are asked anyway
};

// When a source is asked.
enum class EvidenceTime {
  kLive,       // somebody wants to see it
  kBeforeEnd,  // ranks are about to be told to end
  kAfterEnd,   // all ranks of the node have ended, not all well
};

struct EvidenceQuestion {
  std::vector<EvidenceRank> ranks = {};  // of this node
  std::chrono::milliseconds limit{0};
  bool for_job = false;  // services that know the whole job are asked by this node
  EvidenceTime time = EvidenceTime::kLive;
  std::chrono::system_clock::time_point begun{};  // before the ranks were started
};

struct Evidence {
  std::string source;        // as the report names it: "NCCL RAS"
  uint32_t rank = 0;         // the rank that it came from
  std::string text;          // lines, as they came: not yet safe for a terminal
  std::string heading = {};  // in place of "SOURCE says"
};

class EvidenceSource {
 public:
  using Done = std::function<void(std::vector<Evidence> evidence)>;

  virtual ~EvidenceSource() = default;
  // Begins to look. Returns false where there is nothing, at once and without a word. Otherwise `done` is called once
  // within the limit, never from within this call, unless the object goes before. One call at a time. Never blocks: an
  // agent's loop calls it.
  virtual bool Ask(const EvidenceQuestion& question, Done done) = 0;
};

// Returns the line "NCCL RAS WORDS:", or the heading, and at most `most` lines of the text as "  | LINE". Pure.
std::vector<std::string> LinesOf(const Evidence& evidence, const std::string& words, size_t most);

// Returns the value of a variable in a list of NAME=VALUE; empty where it is not there.
std::string ValueIn(const std::vector<std::string>& environment, const std::string& name);

}  // namespace cohort::launcher
