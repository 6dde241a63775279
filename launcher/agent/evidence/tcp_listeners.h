// The TCP sockets of this machine that listen, and the processes that own them, as /proc tells.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace cohort::launcher {

struct TcpListener {
  sockaddr_storage address{};  // to connect to: a wildcard is replaced by the loopback address
  socklen_t size = 0;
  uint16_t port = 0;
  uint64_t inode = 0;  // names the socket
};

// Returns the listening sockets in the text of /proc/net/tcp, or of /proc/net/tcp6. Pure.
std::vector<TcpListener> ParseTcpListeners(const std::string& table);

// Returns the listening sockets of this network namespace at one of these ports. Reads a part of the tables:
// listening sockets come first there.
std::vector<TcpListener> ListenersAt(const std::set<uint16_t>& ports);

// Returns which of these process groups has a process that holds the socket, by the socket's inode. A pass over /proc;
// other users' processes are not seen.
std::map<uint64_t, pid_t> GroupsOfSockets(const std::set<uint64_t>& inodes, const std::set<pid_t>& groups);

}  // namespace cohort::launcher
