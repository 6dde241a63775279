// Forked processes that talk over UCX on the loopback interface, with a key-value store between them. The parent is the
// test; it serves the store and has no transport itself.
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
struct UcxRank {
  runtime::Identity identity;
  SharedStore* store = nullptr;
  std::unique_ptr<Transport> transport;

  // Makes the link to `peer` with group id `group`; the group's ranks are the world's.
  std::unique_ptr<Link> Connect(int peer, uint16_t lane = 0, uint64_t group = 1);
  // Drives the transport until done() or 30 s have passed; false then. Sleeps in Arm when nothing moves.
  bool Drive(const std::function<bool()>& done, std::chrono::nanoseconds limit = std::chrono::seconds(30));
  // Try* until the operation is finished.
  absl::Status Send(Link& link, const void* data, size_t bytes, uint64_t signature = 7);
  absl::Status Recv(Link& link, void* data, size_t bytes, uint64_t signature = 7);
};

// How ranks made from now on cut their messages: the whole set of tests runs both ways.
void SetAsOverRdma(bool as_over_rdma);
// Whether their sockets are as the kernel makes them, which is how it is where the kernel allows no large ones.
void SetSmallSockets(bool small);

// Each rank's identity: one rank a node, all on this host.
runtime::Identity TestIdentity(int rank, int size, const std::string& secret = std::string(32, 's'));

// Runs body(rank) in `size` forked processes and returns their exit codes (128 + n for signal n). A body returns "" or
// what went wrong, which is printed and gives exit code 1. Processes that take longer than `limit` are killed.
std::vector<int> RunRanks(int size, const std::function<std::string(UcxRank&)>& body,
                          std::chrono::seconds limit = std::chrono::seconds(60));
// The same with what is called in the parent once all are started, given their pids; and their secrets.
struct RunOptions {
  std::chrono::seconds limit = std::chrono::seconds(60);
  std::vector<std::string> secrets;  // by rank; the default where absent
  std::function<void(const std::vector<pid_t>&, SharedStore&)> in_parent;
};
std::vector<int> RunRanks(int size, const std::function<std::string(UcxRank&)>& body, const RunOptions& options);

// Empty, or why UCX can't be tested here. Looks in a forked process, so that the parent never loads UCX.
std::string WhyNoUcx();

}  // namespace cohort::comm
