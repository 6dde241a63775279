// Finds the network interface that an address belongs to: UCX is told interfaces by name, people know addresses.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cohort::comm::ucx {

// The name ("eth0", "lo") of the interface that holds `ip`, an IPv4 or IPv6 address in text. A loopback address always
// gives the loopback interface. kInvalidArgument when `ip` is no address, kNotFound when no interface has it; both list
// what there is.
absl::StatusOr<std::string> InterfaceOf(const std::string& ip);

}  // namespace cohort::comm::ucx
