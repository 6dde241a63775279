// The list of systems that a comparison measures, ours first: one entry each. A new peer is a new entry in
// system_list.cc; a peer with an interface of its own also needs a program, built in CMakeLists.txt.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/measure/operation.h"

namespace cohort::collperf {

enum class Transport { kSharedMemory, kTcp };

// A launcher's options, or the program's where there is none, and the variables of its environment.
struct Settings {
  std::vector<std::string> options = {};
  std::vector<std::pair<std::string, std::string>> environment = {};
};

enum class Role {
  kOurs,
  kPeer,
  kFloor,  // no peer: it shows what the machine leaves to any system
};

// In texts "{bin}" stands for the folder of our programs, "{peers}" for that of the peers, "{ranks}" for their number.
struct SystemEntry {
  std::string name;
  Role role = Role::kPeer;
  std::string launcher = {};              // starts all ranks by `-n`; empty: each rank is a command of its own
  std::vector<std::string> program = {};  // in the folder of our programs, with its first arguments
  std::string remedy = {};                // how to get it where its launcher or program is missing: printed
  bool uses_ucx = false;
  bool spins = false;  // without yielding: a call takes milliseconds where ranks share CPUs
  bool has_shared_memory = true;
  bool has_windows = false;     // on one host
  bool is_asynchronous = true;  // a call can run beside computing
  bool is_pair = false;         // of two ranks with a CPU each
  std::vector<measure::Operation> lacks = {};
  // The recommendations of the peer's documentation for one host, by the case.
  Settings always = {};
  Settings shared_memory = {};
  Settings tcp = {};
  Settings each_has_a_cpu = {};
  Settings cpus_are_shared = {};
};

std::span<const SystemEntry> Systems();
// "openmpi, mpich5, ..., bare": what --peers takes.
std::string NamesBesideOurs();

// The settings of a system in one case, and the same as a text of one line.
Settings SettingsOf(const SystemEntry& system, Transport transport, bool cpus_are_shared);
std::string SettingsText(const Settings& settings);

// The facts that the systems' programs receive.
struct SessionPlace {
  std::string bin;          // folder of our programs
  std::string memory = {};  // path of the session's memory
  std::string folder = {};  // an empty one, for rendezvous files
  int ranks = 2;
};
// `text` with the folders that its marks stand for.
std::string WithFolders(std::string text, const SessionPlace& place);

// A system as it is started in one case.
struct StartPlan {
  const SystemEntry* system = nullptr;
  std::string settings;  // for the output
  // Variables of its processes, beside the conductor's own.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // One command that starts all ranks, or one for each rank.
  std::vector<std::vector<std::string>> commands = {};
};
// Ours first, then the peers that are installed and built, in the order of their slots. `missing` names the others, and
// says why and what helps.
std::vector<StartPlan> StartPlansFor(Transport transport, const SessionPlace& place, std::vector<std::string>* missing);

}  // namespace cohort::collperf
