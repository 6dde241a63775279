#include "tools/bench/compare/peer_list.h"

namespace cohort::bench {
namespace {

constexpr const char* kSetup = "tools/dev setup --peers installs it";
constexpr const char* kDebianOpenMpi = "/usr/bin/mpirun.openmpi";
constexpr const char* kOpenMpi5 = "{peers}/openmpi/bin/mpirun";

using Options = std::vector<std::string>;

// Both versions refuse root and more ranks than cores unless they are told.
const Settings& OpenMpiAlways() {
  static const Settings settings{
      .options = {"--oversubscribe"},
      .environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}};
  return settings;
}

Peer DebianOpenMpi() {
  return {.name = "openmpi",
          .launcher = kDebianOpenMpi,
          .program = "compare_openmpi_rank",
          .remedy = kSetup,
          .always = OpenMpiAlways(),
          .shared_memory = {.options = {"--mca", "pml", "ob1", "--mca", "btl", "vader,self"}},
          .tcp = {.options = {"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}}};
}

Peer DebianOpenMpiUcx() {
  Peer peer = DebianOpenMpi();
  const Options ucx = {"--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"};
  peer.name = "openmpi-ucx";
  peer.uses_ucx = true;
  peer.shared_memory.options = ucx;
  peer.tcp.options = ucx;
  for (const char* option : {"-x", "UCX_TLS=tcp,self", "-x", "UCX_NET_DEVICES=lo"}) peer.tcp.options.push_back(option);
  return peer;
}

// Told --oversubscribe, version 5 neither binds ranks nor lets them spin, so both are said explicitly.
Peer OpenMpi5() {
  Peer peer = DebianOpenMpi();
  peer.name = "openmpi5";
  peer.launcher = kOpenMpi5;
  peer.program = "compare_openmpi5_rank";
  peer.shared_memory.options = {"--mca", "pml", "ob1", "--mca", "btl", "sm,self"};
  peer.each_has_a_cpu.options = {"--bind-to", "core:overload-allowed", "--mca", "mpi_yield_when_idle", "0"};
  peer.cpus_are_shared.options = {"--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"};
  return peer;
}

// Its UCX finds no route over the device lo; over another device the kernel loops the packets back all the same.
Peer OpenMpi5Ucx() {
  Peer peer = OpenMpi5();
  const Options ucx = {"--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices",
                       "any"};
  peer.name = "openmpi5-ucx";
  peer.uses_ucx = true;
  peer.shared_memory.options = ucx;
  peer.tcp.options = ucx;
  for (const char* option : {"-x", "UCX_TLS=tcp,self"}) peer.tcp.options.push_back(option);
  return peer;
}

// MPICH's ranks spin: where two start on one core they stay there, and a call takes a time slice.
Peer DebianMpich() {
  return {.name = "mpich",
          .launcher = "/usr/bin/mpiexec.mpich",
          .program = "compare_mpich_rank",
          .remedy = kSetup,
          .uses_ucx = true,
          .spins = true,
          .tcp = {.environment = {{"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "lo"}}},
          .each_has_a_cpu = {.options = {"-bind-to", "core"}}};
}

// It has a shared memory of its own, which MPIR_CVAR_NOLOCAL turns off.
Peer Mpich5() {
  Peer peer = DebianMpich();
  peer.name = "mpich5";
  peer.launcher = "{peers}/mpich/bin/mpiexec";
  peer.program = "compare_mpich5_rank";
  peer.tcp.environment = {{"MPIR_CVAR_NOLOCAL", "1"}, {"UCX_TLS", "tcp,self"}};
  return peer;
}

// Its wheel has no libfabric: MPICH's serves. Collectives within a node go through shared memory, whatever the fabric,
// unless they are told to use messages.
Peer IntelMpi() {
  return {.name = "intelmpi",
          .launcher = "{peers}/impi-rt/bin/mpiexec.hydra",
          .program = "compare_intelmpi_rank",
          .remedy = kSetup,
          .always = {.environment = {{"I_MPI_ROOT", "{peers}/impi-rt"}}},
          .shared_memory = {.environment = {{"I_MPI_FABRICS", "shm"}}},
          .tcp = {.environment = {{"I_MPI_FABRICS", "ofi"},
                                  {"I_MPI_OFI_PROVIDER", "tcp"},
                                  {"FI_TCP_IFACE", "lo"},
                                  {"I_MPI_COLL_INTRANODE", "pt2pt"},
                                  {"LD_LIBRARY_PATH", "{peers}/mpich/lib/mpich"}}}};
}

Peer Gloo() {
  return {.name = "gloo", .launcher = "", .program = "compare_gloo_rank", .remedy = kSetup, .has_shared_memory = false};
}

// Two ranks of nothing but copies and flags, or plain sockets (bare_pair.h).
Peer Bare() {
  return {.name = "bare",
          .launcher = "",
          .program = "compare_bare_rank",
          .remedy = "tools/dev bench peers builds it",
          .bare = true};
}

void Append(const Settings& more, Settings* settings) {
  settings->options.insert(settings->options.end(), more.options.begin(), more.options.end());
  settings->environment.insert(settings->environment.end(), more.environment.begin(), more.environment.end());
}

}  // namespace

std::span<const Peer> Peers() {
  static const std::vector<Peer> peers = {DebianOpenMpi(), DebianOpenMpiUcx(), OpenMpi5(), OpenMpi5Ucx(), DebianMpich(),
                                          Mpich5(),        IntelMpi(),         Gloo(),     Bare()};
  return peers;
}

std::string PeerNames() {
  std::string names;
  for (const Peer& peer : Peers()) names += (names.empty() ? "" : ", ") + peer.name;
  return names;
}

Settings SettingsOf(const Peer& peer, Transport transport, bool cpus_are_shared) {
  Settings settings = peer.always;
  Append(transport == Transport::kTcp ? peer.tcp : peer.shared_memory, &settings);
  Append(cpus_are_shared ? peer.cpus_are_shared : peer.each_has_a_cpu, &settings);
  return settings;
}

std::string SettingsText(const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings.environment) text += (text.empty() ? "" : " ") + name + "=" + value;
  for (const std::string& option : settings.options) text += (text.empty() ? "" : " ") + option;
  return WithFolder(text.empty() ? "its defaults" : text, "build/peers");
}

std::string WithFolder(std::string text, std::string_view folder) {
  constexpr std::string_view kMark = "{peers}";
  for (size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + folder.size())) {
    text.replace(at, kMark.size(), folder);
  }
  return text;
}

}  // namespace cohort::bench
