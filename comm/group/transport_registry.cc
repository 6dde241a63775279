// The transports of this build. A transport itself knows nothing of this table; its entry says how it is made.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/group/transport_set.h"
#include "cohort/comm/select/tuning.h"
#include "cohort/comm/transport/net/net_interface.h"
#include "cohort/comm/transport/shm/layout.h"
#include "cohort/comm/transport/shm/runtime_binding.h"
#include "cohort/comm/transport/tcp/tcp_transport.h"
#include "cohort/comm/transport/ucx/ucx_transport.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/env.h"

namespace cohort::comm {
namespace {

static_assert(Tuning().fanout_bytes == shm::kPartBytes, "predictions must know which publishes are one write");

absl::StatusOr<std::unique_ptr<Transport>> MakeShm(runtime::Runtime& runtime, runtime::KeyValueStore&) {
  return MakeShmTransport(runtime);
}

// This process' identity, with the data address that the user has named.
runtime::Identity IdentityOf(const runtime::Runtime& runtime, const runtime::Environment& environment) {
  runtime::Identity identity = runtime.identity();
  if (!environment.data_addresses.empty()) identity.data_interface_ip = environment.data_addresses.front();
  return identity;
}

// Once a host, so that people can see which network carries the job.
void Print(const runtime::Identity& identity, const std::string& description) {
  if (identity.local_rank != 0 || (identity.node != 0 && identity.nodes_share_host)) return;
  const std::string& node = identity.nodes[static_cast<size_t>(identity.node)].name;
  std::fprintf(stderr, "cohort: %s talks to other nodes over %s\n", node.c_str(), description.c_str());
}

absl::StatusOr<std::unique_ptr<Transport>> MakeUcx(runtime::Runtime& runtime, runtime::KeyValueStore& store) {
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  UcxOptions options;
  options.library = environment.ucx_library;
  options.port_range = environment.port_range;
  options.any_version = environment.ucx_any_version;
  options.set_variables = environment.ucx_variables;
  const runtime::Identity identity = IdentityOf(runtime, environment);
  std::string description;
  absl::StatusOr<std::unique_ptr<Transport>> transport = MakeUcxTransport(identity, &store, options, &description);
  if (transport.ok()) Print(identity, description);
  return transport;
}

std::string Always(runtime::Runtime&) { return ""; }

// UCX moves memory by RDMA; over TCP our own sockets are faster.
std::string WithRdma(runtime::Runtime& runtime) {
  const absl::StatusOr<runtime::Environment> environment = runtime::Environment::Read();
  if (!environment.ok()) return std::string(environment.status().message());
  const runtime::Identity identity = IdentityOf(runtime, *environment);
  if (identity.nodes_share_host) return "nodes share this host, where it would use TCP";
  if (identity.data_interface_ip.empty()) return "no interface is named, so it would use TCP";
  const absl::StatusOr<std::string> interface = net::InterfaceOf(identity.data_interface_ip);
  if (!interface.ok()) return std::string(interface.status().message());
  return net::RdmaDevicesOf(*interface).empty() ? *interface + " has no RDMA device, so it would use TCP" : "";
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTcp(runtime::Runtime& runtime, runtime::KeyValueStore& store) {
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  TcpOptions options;
  options.port_range = environment.port_range;
  options.encrypt = environment.encrypt_data;
  const std::vector<std::string>& named = environment.data_addresses;
  if (named.size() > 1) options.further_ips.assign(named.begin() + 1, named.end());
  const runtime::Identity identity = IdentityOf(runtime, environment);
  std::string description;
  absl::StatusOr<std::unique_ptr<Transport>> transport = MakeTcpTransport(identity, &store, options, &description);
  if (transport.ok()) Print(identity, description);
  return transport;
}

}  // namespace

const std::vector<TransportEntry>& RegisteredTransports() {
  static const std::vector<TransportEntry> entries = {
#define COHORT_TRANSPORT(name, factory, fits, encryption) {#name, &factory, &fits, Encryption::encryption},
#include "cohort/comm/group/transports.def"
#undef COHORT_TRANSPORT
  };
  return entries;
}

}  // namespace cohort::comm
