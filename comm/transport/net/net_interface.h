// Finds the network interface that an address belongs to, and what RDMA hardware is behind it: UCX is told devices by
// name, people know addresses.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::comm::net {

// The name ("eth0", "lo") of the interface that holds `ip`, an IPv4 or IPv6 address in text. A loopback address always
// gives the loopback interface. kInvalidArgument when `ip` is no address, kNotFound when no interface has it; both list
// what there is.
absl::StatusOr<std::string> InterfaceOf(const std::string& ip);

// The RDMA ports behind an interface, as UCX names them ("mlx5_0:1"); none when it has no such hardware. `sysfs` is
// where the kernel shows devices; tests give another folder.
std::vector<std::string> RdmaDevicesOf(const std::string& interface, const std::string& sysfs = "/sys");

}  // namespace cohort::comm::net
