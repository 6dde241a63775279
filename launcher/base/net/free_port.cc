#include "cohort/launcher/base/net/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cstdint>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

int FindFreePort(int first, int last) {
  const auto free = [](int port) {
    const runtime::FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_ANY);
    any.sin_port = htons(static_cast<uint16_t>(port));
    return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0;
  };
  for (int port = first; first > 0 && port <= last; ++port) {
    if (free(port)) return port;
  }
  if (first > 0) return 0;
  for (int attempt = 0; attempt < 100; ++attempt) {
    uint16_t number = 0;
    if (::getrandom(&number, sizeof number, 0) != sizeof number) continue;  // EINTR, at the machine's start
    const int port = 20000 + number % 12000;
    if (free(port)) return port;
  }
  return 0;
}

}  // namespace cohort::launcher
