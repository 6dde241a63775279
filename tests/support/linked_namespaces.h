// Two network namespaces joined by a link in user space: two machines with a network between them whose delay, loss and
// speed the test sets, and which it can cut. The kernel need have nothing but TUN devices.
//
//   namespace 0: wire0 10.77.0.1 ──TUN──► forwarding process: waits, drops, counts ──TUN──► wire0 10.77.0.2 : namespace
//   1
//                decoy0 10.99.0.1 (up, leads nowhere)                          decoy0 10.99.0.2
//
// Nothing has a name outside: namespaces, devices and the forwarding process are gone with the process that made them,
// however it ends.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort::testing {

// The settings of each direction; they may change at any time. Loss is random by a fixed seed.
struct LinkSettings {
  std::atomic<uint32_t> delay_us{0};
  std::atomic<uint32_t> lost_per_million{0};
  std::atomic<uint64_t> bits_per_second{0};  // 0: no limit
  std::atomic<bool> cut{false};
  std::atomic<uint64_t> bytes_carried{0};  // both directions
};

class LinkedNamespaces {
 public:
  // kFailedPrecondition with the reason where this process may not make namespaces or the kernel has no TUN devices.
  // The caller must have one thread.
  static absl::StatusOr<std::unique_ptr<LinkedNamespaces>> Create();
  ~LinkedNamespaces();
  LinkedNamespaces(const LinkedNamespaces&) = delete;
  LinkedNamespaces& operator=(const LinkedNamespaces&) = delete;

  // Moves the calling process, which must have one thread, into namespace `node` (network, IPC, and a /sys of its own).
  absl::Status Enter(int node) const;
  static std::string AddressOf(int node) { return "10.77.0." + std::to_string(node + 1); }
  // In memory that forked processes share.
  LinkSettings& settings() { return *settings_; }

 private:
  struct Node {
    std::array<int, 3> namespaces = {-1, -1, -1};
    int wire = -1;
    int decoy = -1;
  };
  LinkedNamespaces() = default;
  absl::Status MakeNode(int index);

  std::array<Node, 2> nodes_;
  LinkSettings* settings_ = nullptr;
  pid_t forwarder_ = -1;
};

}  // namespace cohort::testing
