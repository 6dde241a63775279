// How each compared system is started: ours, and the peers of the list.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/bench/compare/peer_list.h"

namespace cohort::bench {

struct SystemSpec {
  std::string name;
  // Environment of its processes, beside the conductor's own.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // One command that starts all ranks, or one for each rank.
  std::vector<std::vector<std::string>> commands;
  std::string settings = {};  // for the output
  bool ours = false;
  bool uses_ucx = false;
  bool bare = false;
  // Spins without yielding: a call takes milliseconds where ranks share CPUs.
  bool spins = false;
};

// The facts that a session's programs receive.
struct SessionPlace {
  std::string bin;     // folder of our programs
  std::string memory;  // path of the session's memory
  std::string folder;  // an empty one, for rendezvous files
  int ranks = 2;
};

// Ours first, then the peers that are installed and built, in the order of their slots. `missing` names the others, and
// says why and what helps.
std::vector<SystemSpec> SystemsFor(Transport transport, const SessionPlace& place, std::vector<std::string>* missing);

}  // namespace cohort::bench
