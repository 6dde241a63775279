// The list of systems that a comparison measures beside ours: one entry each. A new peer is a new entry in
// peer_list.cc; a peer with an interface of its own also needs a program, built in CMakeLists.txt.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cohort::bench {

enum class Transport { kSharedMemory, kTcp };

// A launcher's options and the variables of its environment. "{peers}" stands for the folder of the peers.
struct Settings {
  std::vector<std::string> options = {};
  std::vector<std::pair<std::string, std::string>> environment = {};
};

struct Peer {
  std::string name;
  std::string launcher;  // starts all ranks by `-n`; empty: each rank is a command of its own
  std::string program;   // in the folder of our programs
  std::string remedy;    // how to get it where it is missing
  bool uses_ucx = false;
  bool spins = false;  // without yielding: a call takes milliseconds where ranks share CPUs
  bool has_shared_memory = true;
  // The bare pair: it stands beside the peers and is none of them. For two ranks with a CPU each.
  bool bare = false;
  // The recommendations of the peer's documentation for one host, by the case.
  Settings always = {};
  Settings shared_memory = {};
  Settings tcp = {};
  Settings each_has_a_cpu = {};
  Settings cpus_are_shared = {};
};

std::span<const Peer> Peers();
// "openmpi, mpich5, ...".
std::string PeerNames();

// The settings of a peer in one case, and the same as a text of one line.
Settings SettingsOf(const Peer& peer, Transport transport, bool cpus_are_shared);
std::string SettingsText(const Settings& settings);
// `text` with the folder in place of "{peers}".
std::string WithFolder(std::string text, std::string_view folder);

}  // namespace cohort::bench
