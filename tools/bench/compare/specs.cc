#include "tools/bench/compare/specs.h"

#include <unistd.h>

#include <algorithm>

namespace cohort::bench {
namespace {

using Command = std::vector<std::string>;

constexpr const char* kOpenMpiRun = "/usr/bin/mpirun.openmpi";
constexpr const char* kMpichRun = "/usr/bin/mpiexec.mpich";

bool CanRun(const std::string& program) { return access(program.c_str(), X_OK) == 0; }

Command Join(std::initializer_list<Command> parts) {
  Command all;
  for (const Command& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

SystemSpec OpenMpi(const std::string& name, const SessionPlace& place, const Command& settings) {
  SystemSpec spec{.name = name, .commands = {}};
  spec.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  spec.commands = {Join({{kOpenMpiRun, "--oversubscribe", "-n", std::to_string(place.ranks)},
                         settings,
                         {place.bin + "/compare_openmpi_rank", place.memory, std::to_string(place.ranks)}})};
  return spec;
}

SystemSpec Ours(Transport transport, const SessionPlace& place) {
  const std::string ranks = std::to_string(place.ranks);
  const Command layout = transport == Transport::kSharedMemory
                             ? Command{"--nproc-per-node", ranks}
                             : Command{"--nnodes", ranks, "--simulate-nodes", ranks, "--nproc-per-node", "1"};
  SystemSpec spec{.name = "cohort", .commands = {}, .ours = true};
  spec.commands = {Join({{place.bin + "/dlaunch"}, layout, {place.bin + "/compare_cohort_rank", place.memory, ranks}})};
  return spec;
}

std::vector<SystemSpec> OpenMpis(Transport transport, const SessionPlace& place) {
  const Command ucx = {"--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"};
  if (transport == Transport::kSharedMemory) {
    SystemSpec plain = OpenMpi("openmpi", place, {"--mca", "pml", "ob1", "--mca", "btl", "vader,self"});
    SystemSpec over_ucx = OpenMpi("openmpi-ucx", place, ucx);
    over_ucx.uses_ucx = true;
    return {plain, over_ucx};
  }
  SystemSpec plain = OpenMpi("openmpi", place,
                             {"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"});
  SystemSpec over_ucx =
      OpenMpi("openmpi-ucx", place, Join({ucx, {"-x", "UCX_TLS=tcp,self", "-x", "UCX_NET_DEVICES=lo"}}));
  over_ucx.uses_ucx = true;
  return {plain, over_ucx};
}

SystemSpec Mpich(Transport transport, const SessionPlace& place) {
  const std::string ranks = std::to_string(place.ranks);
  SystemSpec spec{.name = "mpich", .commands = {}, .uses_ucx = true, .spins = true};
  // Its ranks spin: where two start on one core they stay there, and a call takes a time slice.
  const bool fits = place.ranks <= sysconf(_SC_NPROCESSORS_ONLN);
  const Command binding = fits ? Command{"-bind-to", "core"} : Command{};
  spec.commands = {Join({{kMpichRun, "-n", ranks}, binding, {place.bin + "/compare_mpich_rank", place.memory, ranks}})};
  if (transport == Transport::kTcp) spec.environment = {{"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "lo"}};
  return spec;
}

SystemSpec Gloo(const SessionPlace& place) {
  SystemSpec spec{.name = "gloo", .commands = {}};
  for (int rank = 0; rank < place.ranks; ++rank) {
    spec.commands.push_back({place.bin + "/compare_gloo_rank", place.memory, std::to_string(place.ranks)});
  }
  return spec;
}

}  // namespace

std::vector<SystemSpec> SystemsFor(Transport transport, const SessionPlace& place, std::vector<std::string>* missing) {
  std::vector<SystemSpec> systems = {Ours(transport, place)};
  const auto present = [&](const std::string& name, const std::string& program, const std::string& launcher) {
    if (!launcher.empty() && !CanRun(launcher)) {
      missing->push_back(name + " (there is no " + launcher + "; tools/dev setup --peers installs it)");
      return false;
    }
    if (CanRun(place.bin + "/" + program)) return true;
    missing->push_back(name + " (there is no " + place.bin + "/" + program +
                       "; tools/dev bench peers builds it, or ninja compare_peers in a build configured since then)");
    return false;
  };
  if (present("openmpi", "compare_openmpi_rank", kOpenMpiRun)) {
    for (SystemSpec& spec : OpenMpis(transport, place)) systems.push_back(spec);
  }
  if (present("mpich", "compare_mpich_rank", kMpichRun)) systems.push_back(Mpich(transport, place));
  if (transport == Transport::kTcp && present("gloo", "compare_gloo_rank", "")) systems.push_back(Gloo(place));
  // The last arguments: the system's slot, and for a command of one rank the folder and the rank.
  for (size_t slot = 0; slot < systems.size(); ++slot) {
    for (size_t rank = 0; rank < systems[slot].commands.size(); ++rank) {
      Command& command = systems[slot].commands[rank];
      command.push_back(std::to_string(slot));
      if (systems[slot].commands.size() == 1) continue;
      command.push_back(place.folder);
      command.push_back(std::to_string(rank));
    }
  }
  return systems;
}

}  // namespace cohort::bench
