// Moves bytes between ranks on different nodes over UCX: TCP anywhere, RDMA where UCX finds it. README.md has the whole
// picture: order, flow control, authentication, failures.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::comm {

struct UcxOptions {
  // Another libucp than the one that is loaded or installed (Environment's COHORT_UCX_LIBRARY). Empty: that one.
  std::string library;
  // "20000-20100": the ports on which to listen (Environment's COHORT_PORT_RANGE). Empty: any.
  std::string port_range;
  // Talk to peers with another release of UCX, too (COHORT_UCX_ANY_VERSION).
  bool any_version = false;
  // Cut messages as on networks that move memory themselves; for tests on those that do not.
  bool as_over_rdma = false;
  // UCX_... variables that are set: what they say is not changed here.
  std::vector<std::string> set_variables;
};

// Makes this process's UCX transport and publishes its address as "ucx/address/<epoch>/<rank>" in `store`. One per
// process and epoch, made when the first group spans nodes; links of all groups share it. `store` must outlive it and
// bear Get calls from another thread (they are made with deadlines of at most 200 ms). Blocks for the Put and some
// milliseconds of set-up. `description`, if not null, gets one line for people: UCX's version, the interface,
// transports.
//
// kUnimplemented when built without UCX or when the library is missing; kNotFound when no interface has
// identity.data_interface_ip; kUnavailable when UCX can't work on it; or the error of store.Put. All name the remedy.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const runtime::Identity& identity,
                                                            runtime::KeyValueStore* store,
                                                            const UcxOptions& options = {},
                                                            std::string* description = nullptr);

}  // namespace cohort::comm
