#include "tools/collperf/peers/system_list.h"

#include <unistd.h>

#include <initializer_list>

#include "cohort/runtime/base/cpu_budget.h"

namespace cohort::collperf {
namespace {

constexpr const char* kSetup = "tools/dev setup --peers installs it, tools/dev bench peers builds its program";
constexpr const char* kPeersFolder = "build/peers";  // as texts name it
constexpr const char* kDebianOpenMpi = "/usr/bin/mpirun.openmpi";
constexpr const char* kOpenMpi5 = "{peers}/openmpi/bin/mpirun";

using measure::Operation;
using Words = std::vector<std::string>;

// Both versions refuse root and more ranks than cores unless they are told.
const Settings& OpenMpiAlways() {
  static const Settings settings{
      .options = {"--oversubscribe"},
      .environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}};
  return settings;
}

SystemEntry DebianOpenMpi() {
  return {.name = "openmpi",
          .launcher = kDebianOpenMpi,
          .program = {"compare_openmpi_rank"},
          .remedy = kSetup,
          .always = OpenMpiAlways(),
          .shared_memory = {.options = {"--mca", "pml", "ob1", "--mca", "btl", "vader,self"}},
          .tcp = {.options = {"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}}};
}

SystemEntry DebianOpenMpiUcx() {
  SystemEntry system = DebianOpenMpi();
  const Words ucx = {"--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"};
  system.name = "openmpi-ucx";
  system.uses_ucx = true;
  system.shared_memory.options = ucx;
  system.tcp.options = ucx;
  for (const char* option : {"-x", "UCX_TLS=tcp,self", "-x", "UCX_NET_DEVICES=lo"})
    system.tcp.options.push_back(option);
  return system;
}

// Told --oversubscribe, version 5 neither binds ranks nor lets them spin, so both are said explicitly.
SystemEntry OpenMpi5() {
  SystemEntry system = DebianOpenMpi();
  system.name = "openmpi5";
  system.launcher = kOpenMpi5;
  system.program = {"compare_openmpi5_rank"};
  system.shared_memory.options = {"--mca", "pml", "ob1", "--mca", "btl", "sm,self"};
  system.each_has_a_cpu.options = {"--bind-to", "core:overload-allowed", "--mca", "mpi_yield_when_idle", "0"};
  system.cpus_are_shared.options = {"--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"};
  return system;
}

// Its UCX finds no route over the device lo; over another device the kernel loops the packets back all the same.
SystemEntry OpenMpi5Ucx() {
  SystemEntry system = OpenMpi5();
  const Words ucx = {"--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices",
                     "any"};
  system.name = "openmpi5-ucx";
  system.uses_ucx = true;
  system.shared_memory.options = ucx;
  system.tcp.options = ucx;
  for (const char* option : {"-x", "UCX_TLS=tcp,self"}) system.tcp.options.push_back(option);
  return system;
}

// MPICH's ranks spin: where two start on one core they stay there, and a call takes a time slice.
SystemEntry DebianMpich() {
  return {.name = "mpich",
          .launcher = "/usr/bin/mpiexec.mpich",
          .program = {"compare_mpich_rank"},
          .remedy = kSetup,
          .uses_ucx = true,
          .spins = true,
          .tcp = {.environment = {{"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "lo"}}},
          .each_has_a_cpu = {.options = {"-bind-to", "core"}}};
}

// It has a shared memory of its own, which MPIR_CVAR_NOLOCAL turns off.
SystemEntry Mpich5() {
  SystemEntry system = DebianMpich();
  system.name = "mpich5";
  system.launcher = "{peers}/mpich/bin/mpiexec";
  system.program = {"compare_mpich5_rank"};
  system.tcp.environment = {{"MPIR_CVAR_NOLOCAL", "1"}, {"UCX_TLS", "tcp,self"}};
  return system;
}

// Its wheel has no libfabric: MPICH's serves. Collectives within a node go through shared memory, whatever the fabric,
// unless they are told to use messages.
SystemEntry IntelMpi() {
  return {.name = "intelmpi",
          .launcher = "{peers}/impi-rt/bin/mpiexec.hydra",
          .program = {"compare_intelmpi_rank"},
          .remedy = kSetup,
          .always = {.environment = {{"I_MPI_ROOT", "{peers}/impi-rt"}}},
          .shared_memory = {.environment = {{"I_MPI_FABRICS", "shm"}}},
          .tcp = {.environment = {{"I_MPI_FABRICS", "ofi"},
                                  {"I_MPI_OFI_PROVIDER", "tcp"},
                                  {"FI_TCP_IFACE", "lo"},
                                  {"I_MPI_COLL_INTRANODE", "pt2pt"},
                                  {"LD_LIBRARY_PATH", "{peers}/mpich/lib/mpich"}}}};
}

// Its reduce-scatter overwrites its input, so that a call would have to begin with a copy. Its calls block.
SystemEntry Gloo() {
  return {.name = "gloo",
          .program = {"compare_gloo_rank"},
          .remedy = kSetup,
          .has_shared_memory = false,
          .is_asynchronous = false,
          .lacks = {Operation::kReduceScatter, Operation::kSendRecv}};
}

// Two ranks of nothing but copies and flags, or plain sockets (bare_pair.h).
SystemEntry Bare() {
  return {.name = "bare",
          .role = Role::kFloor,
          .program = {"compare_bare_rank"},
          .remedy = "tools/dev bench peers builds it",
          .has_windows = true,
          .is_asynchronous = false,
          .is_pair = true,
          .lacks = {Operation::kSendRecv},
          .shared_memory = {.options = {"copies"}},
          .tcp = {.options = {"sockets"}}};
}

SystemEntry Ours() {
  return {.name = "cohort",
          .role = Role::kOurs,
          .launcher = "{bin}/dlaunch",
          .program = {"collperf", "--serve"},
          .has_windows = true,
          .tcp = {.options = {"--simulate-nodes", "{ranks}"}}};
}

void Append(const Settings& more, Settings* settings) {
  settings->options.insert(settings->options.end(), more.options.begin(), more.options.end());
  settings->environment.insert(settings->environment.end(), more.environment.begin(), more.environment.end());
}

Words Join(std::initializer_list<Words> parts) {
  Words all;
  for (const Words& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

bool CanRun(const std::string& program) { return access(program.c_str(), X_OK) == 0; }

std::string Replaced(std::string text, std::string_view mark, std::string_view with) {
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + with.size())) {
    text.replace(at, mark.size(), with);
  }
  return text;
}

// Empty where the system can be started. Ours is: what fails then says more.
std::string ReasonMissing(const SystemEntry& system, const SessionPlace& place) {
  if (system.role == Role::kOurs) return "";
  if (system.is_pair && (place.ranks != 2 || runtime::Oversubscribed(place.ranks))) {
    return "it is two ranks with a CPU each";
  }
  if (!system.launcher.empty() && !CanRun(WithFolders(system.launcher, place))) {
    return "there is no " + Replaced(system.launcher, "{peers}", kPeersFolder) + "; " + system.remedy;
  }
  if (CanRun(place.bin + "/" + system.program[0])) return "";
  return "there is no program " + system.program[0] + "; " + system.remedy;
}

// The last arguments are the session's memory, its ranks and the system's slot, and for a command of one rank the
// folder and the rank.
StartPlan StartOf(const SystemEntry& system, Transport transport, const SessionPlace& place, size_t slot) {
  const std::string ranks = std::to_string(place.ranks);
  Settings settings = SettingsOf(system, transport, place.ranks > sysconf(_SC_NPROCESSORS_ONLN));
  for (std::string& option : settings.options) option = Replaced(option, "{ranks}", ranks);
  StartPlan start{.system = &system, .settings = SettingsText(settings)};
  for (const auto& [name, value] : settings.environment)
    start.environment.emplace_back(name, WithFolders(value, place));
  Words program = system.program;
  program[0] = place.bin + "/" + program[0];
  const Words session = {place.memory, ranks, std::to_string(slot)};
  if (!system.launcher.empty()) {
    start.commands = {Join({{WithFolders(system.launcher, place), "-n", ranks}, settings.options, program, session})};
    return start;
  }
  for (int rank = 0; rank < place.ranks; ++rank) {
    start.commands.push_back(Join({program, settings.options, session, {place.folder, std::to_string(rank)}}));
  }
  return start;
}

}  // namespace

std::span<const SystemEntry> Systems() {
  static const std::vector<SystemEntry> systems = {Ours(),        DebianOpenMpi(), DebianOpenMpiUcx(), OpenMpi5(),
                                                   OpenMpi5Ucx(), DebianMpich(),   Mpich5(),           IntelMpi(),
                                                   Gloo(),        Bare()};
  return systems;
}

std::string NamesBesideOurs() {
  std::string names;
  for (const SystemEntry& system : Systems().subspan(1)) names += (names.empty() ? "" : ", ") + system.name;
  return names;
}

Settings SettingsOf(const SystemEntry& system, Transport transport, bool cpus_are_shared) {
  Settings settings = system.always;
  Append(transport == Transport::kTcp ? system.tcp : system.shared_memory, &settings);
  Append(cpus_are_shared ? system.cpus_are_shared : system.each_has_a_cpu, &settings);
  return settings;
}

std::string SettingsText(const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings.environment) text += (text.empty() ? "" : " ") + name + "=" + value;
  for (const std::string& option : settings.options) text += (text.empty() ? "" : " ") + option;
  return text.empty() ? "its defaults" : Replaced(text, "{peers}", kPeersFolder);
}

// The wheels lie in build/peers, beside the folder of the build.
std::string WithFolders(std::string text, const SessionPlace& place) {
  return Replaced(Replaced(std::move(text), "{peers}", place.bin + "/../../peers"), "{bin}", place.bin);
}

std::vector<StartPlan> StartPlansFor(Transport transport, const SessionPlace& place,
                                     std::vector<std::string>* missing) {
  std::vector<StartPlan> starts;
  for (const SystemEntry& system : Systems()) {
    if (transport == Transport::kSharedMemory && !system.has_shared_memory) continue;
    const std::string reason = ReasonMissing(system, place);
    if (reason.empty()) {
      starts.push_back(StartOf(system, transport, place, starts.size()));
    } else {
      missing->push_back(system.name + " (" + reason + ")");
    }
  }
  return starts;
}

}  // namespace cohort::collperf
