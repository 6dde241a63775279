// Moves bytes between ranks on different nodes over TCP sockets of its own. README.md has the whole picture: handshake,
// frames, flow control, failures.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::comm {

struct TcpOptions {
  // "20000-20100": the ports on which to listen (Environment's COHORT_PORT_RANGE). Empty: any.
  std::string port_range;
  // Encrypt all data by TLS 1.3 (Environment's COHORT_ENCRYPT_DATA). Equal on all ranks: others are refused.
  bool encrypt = false;
  // Addresses of further interfaces, which carry long messages together with identity.data_interface_ip's. Unused with
  // `encrypt`.
  std::vector<std::string> further_ips;
  // Leave the buffers of sockets as the kernel makes them; for tests.
  bool small_sockets = false;
};

// Makes this process' TCP transport, which listens from then on, and publishes its addresses as
// "tcp/address/<epoch>/<rank>" in `store`. One per process and epoch; links of all groups share it. `store` must
// outlive it and bear Get calls from another thread (they are made with deadlines of at most 200 ms). Blocks for the
// Put. `description`, if not null, gets one line for people: the interface, its address, and the encryption.
//
// kNotFound when no interface has identity.data_interface_ip or one of further_ips; kUnavailable, kResourceExhausted or
// kInternal when it can't listen there; or the error of store.Put. All name the remedy.
absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(const runtime::Identity& identity,
                                                            runtime::KeyValueStore* store,
                                                            const TcpOptions& options = {},
                                                            std::string* description = nullptr);

}  // namespace cohort::comm
