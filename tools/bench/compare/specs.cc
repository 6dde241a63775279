#include "tools/bench/compare/specs.h"

#include <unistd.h>

#include "cohort/runtime/base/cpu_budget.h"

namespace cohort::bench {
namespace {

using Command = std::vector<std::string>;

bool CanRun(const std::string& program) { return access(program.c_str(), X_OK) == 0; }

Command Join(std::initializer_list<Command> parts) {
  Command all;
  for (const Command& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// The wheels lie in build/peers, beside the folder of the build.
std::string PeersFolder(const SessionPlace& place) { return place.bin + "/../../peers"; }

SystemSpec Ours(Transport transport, const SessionPlace& place) {
  const std::string ranks = std::to_string(place.ranks);
  const Command layout = transport == Transport::kSharedMemory
                             ? Command{"--nproc-per-node", ranks}
                             : Command{"--nnodes", ranks, "--simulate-nodes", ranks, "--nproc-per-node", "1"};
  SystemSpec spec{.name = "cohort", .commands = {}, .settings = SettingsText({.options = layout}), .ours = true};
  spec.commands = {Join({{place.bin + "/dlaunch"}, layout, {place.bin + "/collperf", "--serve", place.memory, ranks}})};
  return spec;
}

// Empty where the peer can be started.
std::string ReasonMissing(const Peer& peer, const SessionPlace& place) {
  if (peer.bare && (place.ranks != 2 || runtime::Oversubscribed(place.ranks))) {
    return "it is two ranks with a CPU each";
  }
  const std::string launcher = WithFolder(peer.launcher, PeersFolder(place));
  if (!launcher.empty() && !CanRun(launcher)) {
    return "there is no " + WithFolder(peer.launcher, "build/peers") + "; " + peer.remedy;
  }
  if (CanRun(place.bin + "/" + peer.program)) return "";
  return "there is no program " + peer.program +
         "; tools/dev bench peers builds it, or ninja compare_peers in a build configured after tools/dev setup "
         "--peers";
}

SystemSpec SpecOf(const Peer& peer, Transport transport, const SessionPlace& place) {
  const bool cpus_are_shared = place.ranks > sysconf(_SC_NPROCESSORS_ONLN);
  const Settings settings = SettingsOf(peer, transport, cpus_are_shared);
  SystemSpec spec{.name = peer.name,
                  .commands = {},
                  .settings = peer.bare ? "plain copies and flags, or plain sockets" : SettingsText(settings),
                  .uses_ucx = peer.uses_ucx,
                  .bare = peer.bare,
                  .spins = peer.spins};
  for (const auto& [name, value] : settings.environment) {
    spec.environment.emplace_back(name, WithFolder(value, PeersFolder(place)));
  }
  const std::string ranks = std::to_string(place.ranks);
  Command program = {place.bin + "/" + peer.program, place.memory, ranks};
  if (peer.bare) program.push_back(transport == Transport::kTcp ? "tcp" : "shm");
  if (peer.launcher.empty()) {
    spec.commands.assign(static_cast<size_t>(place.ranks), program);
  } else {
    const Command launcher = {WithFolder(peer.launcher, PeersFolder(place)), "-n", ranks};
    spec.commands = {Join({launcher, settings.options, program})};
  }
  return spec;
}

}  // namespace

std::vector<SystemSpec> SystemsFor(Transport transport, const SessionPlace& place, std::vector<std::string>* missing) {
  std::vector<SystemSpec> systems = {Ours(transport, place)};
  for (const Peer& peer : Peers()) {
    if (transport == Transport::kSharedMemory && !peer.has_shared_memory) continue;
    const std::string reason = ReasonMissing(peer, place);
    if (reason.empty()) {
      systems.push_back(SpecOf(peer, transport, place));
    } else {
      missing->push_back(peer.name + " (" + reason + ")");
    }
  }
  // The last arguments: the system's slot, and for a command of one rank the folder and the rank.
  for (size_t slot = 0; slot < systems.size(); ++slot) {
    for (size_t rank = 0; rank < systems[slot].commands.size(); ++rank) {
      auto& command = systems[slot].commands[rank];
      command.push_back(std::to_string(slot));
      if (systems[slot].commands.size() == 1) continue;
      command.push_back(place.folder);
      command.push_back(std::to_string(rank));
    }
  }
  return systems;
}

}  // namespace cohort::bench
