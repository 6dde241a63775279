// Sockets of this transport: addresses in text, listening, connecting, options. Nothing here blocks.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::comm::tcp {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;

  uint16_t port() const;
};
// "10.0.0.1" or "fe80::1%eth0". kInvalidArgument.
absl::StatusOr<SocketAddress> AddressOf(const std::string& ip, uint16_t port);
// "10.0.0.1:4711" or "[fe80::1]:4711", and back.
std::string ToText(const SocketAddress& address);
absl::StatusOr<SocketAddress> ParseAddress(const std::string& text);

// SO_SNDBUF and SO_RCVBUF of a connection, for a world of `ranks` ranks; 0: the kernel's own, growing
// buffers, where it would grant less. Both are limits, which only data under way fills.
int SocketBufferBytes(int world_size);

// Listens on `ip` (empty: all interfaces) and a port of `port_range` ("20000-20100"; empty: any).
absl::StatusOr<runtime::FileDescriptor> Listen(const std::string& ip, const std::string& port_range, int buffer_bytes);
// The addresses at which a listening socket can be reached: its own address, or those of all interfaces that are up.
absl::StatusOr<std::vector<std::string>> AddressesOf(int listener);

// Begins to connect, from the address `from` unless it is empty: the socket becomes writable when it is connected, or
// has an error.
absl::StatusOr<runtime::FileDescriptor> StartConnect(const SocketAddress& address, int buffer_bytes,
                                                     const std::string& from = "");
// 0, EINPROGRESS or why connecting failed.
int ConnectError(int socket);
// Whether the other side has closed it, or it was reset.
bool HasEnded(int socket);
// Whether bytes are on their way that the other side's kernel has not acknowledged, and may yet.
bool HasUnacknowledged(int socket);
// An accepted connection, ready to use; an errno in *error where there is none.
runtime::FileDescriptor AcceptFrom(int listener, int* error);

// Raises the soft limit on descriptors as far as it may be, up to 65,536: each peer talked to needs one, and strangers'
// connections take some for a while.
void TakeDescriptors();

}  // namespace cohort::comm::tcp
