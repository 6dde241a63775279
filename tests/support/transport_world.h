// Forked processes that talk over a transport between hosts on the loopback interface, with a key-value store between
// them. The parent is the test; it serves the store and has no transport itself.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::comm {

// A store in memory that forked processes share. Values up to 4 KiB, 64 keys.
class SharedStore : public runtime::KeyValueStore {
 public:
  SharedStore();
  ~SharedStore() override;
  absl::Status Put(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> Get(std::string_view key, runtime::Deadline deadline) override;

 private:
  struct Memory;
  Memory* memory_;
};

// Holds what a rank of a test sees.
struct TransportRank {
  runtime::Identity identity;
  SharedStore* store = nullptr;
  std::unique_ptr<Transport> transport;

  // As SetTransport says; for tests that make another one.
  absl::StatusOr<std::unique_ptr<Transport>> Make(const runtime::Identity& own) const;
  // Makes the link to `peer` with group id `group`; the group's ranks are the world's.
  std::unique_ptr<Link> Connect(int peer, uint16_t lane = 0, uint64_t group = 1);
  // Drives the transport until done() or 30 s have passed; false then. Sleeps in Arm when nothing moves.
  bool Drive(const std::function<bool()>& done, std::chrono::nanoseconds limit = std::chrono::seconds(30));
  // Try* until the operation is finished.
  absl::Status Send(Link& link, const void* data, size_t bytes, uint64_t signature = 7);
  absl::Status Recv(Link& link, void* data, size_t bytes, uint64_t signature = 7);
};

using TransportMaker = std::function<absl::StatusOr<std::unique_ptr<Transport>>(const runtime::Identity& identity,
                                                                                runtime::KeyValueStore* store)>;

// A transport between hosts with its settings, and what tests must know of it.
struct NetKind {
  std::string name;  // for the names of tests
  TransportMaker make;
  uint64_t piece_bytes = 0;  // sizes around multiples of it are of interest
  uint64_t window = 0;       // charged to one link while the receiver has posted nothing
  bool announces = false;    // a long message stays in the sender's memory until the receiver has fetched it
};
// All of this build: UCX as over TCP and as over RDMA, each with large and with small sockets where that matters, and
// our own TCP, with and without TLS, over one interface and over several.
std::vector<NetKind> NetKinds();

// The transport of ranks made from now on.
void SetTransport(const TransportMaker& make);
// Each rank's identity: one rank a node, all on this host.
runtime::Identity TestIdentity(int rank, int size, const std::string& secret = std::string(32, 's'));

// Runs body(rank) in `size` forked processes and returns their exit codes (128 + n for signal n). A body returns "" or
// what went wrong, which is printed and gives exit code 1. Processes that take longer than `limit` are killed.
std::vector<int> RunRanks(int size, const std::function<std::string(TransportRank&)>& body,
                          std::chrono::seconds limit = std::chrono::seconds(60));
// The same with what is called in the parent once all are started, given their pids; and their secrets.
struct RunOptions {
  std::chrono::seconds limit = std::chrono::seconds(60);
  std::vector<std::string> secrets;  // by rank; the default where absent
  std::function<void(const std::vector<pid_t>&, SharedStore&)> in_parent;
};
std::vector<int> RunRanks(int size, const std::function<std::string(TransportRank&)>& body, const RunOptions& options);

// Empty, or why this transport can't be tested here. Looks in a forked process, so that the parent never loads UCX.
std::string WhyNot(const NetKind& kind);

}  // namespace cohort::comm
