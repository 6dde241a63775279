// Serves MPI programs: a socket for each rank of the node, over which its MPI library speaks PMI-1 (pmi1_node.h), and
// the exchange of their values with the other nodes (value_exchange.h).
//
// On the agent's event loop; nothing blocks. A rank that speaks no PMI-1 costs a pair of sockets.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/mpi/pmi1_node.h"
#include "cohort/launcher/agent/mpi/value_exchange.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class MpiService {
 public:
  struct Callbacks {
    std::function<void(const v1::PutRequest&)> put;  // see ValueExchange
    std::function<void(const v1::GetRequest&)> get;
    std::function<void(const std::string&)> on_notice;  // a line for the user
    // This local rank has called MPI_Abort with that code and waits to be killed.
    std::function<void(int local_rank, int code)> on_abort;
    // This local rank can't go on; said a second later, so that another cause shows first.
    std::function<void(int local_rank, const std::string& why)> on_stuck;
  };

  // The assignment outlives this object.
  MpiService(EventLoop* loop, const v1::Assignment& assignment, Callbacks callbacks);
  ~MpiService();
  MpiService(const MpiService&) = delete;
  MpiService& operator=(const MpiService&) = delete;

  // Makes the sockets. kResourceExhausted: there are no descriptors.
  absl::Status Start();
  // The rank's end of its socket, which it inherits, and the variables by which its MPI library finds it. After Start.
  int InheritedBy(int local_rank) const { return ranks_[static_cast<size_t>(local_rank)].theirs.get(); }
  std::vector<std::string> EnvironmentOf(int local_rank) const;
  // The ranks have been started: only they hold their ends from now on.
  void CloseInherited();

  // Answers of the store.
  ValueExchange& exchange() { return exchange_; }

  // Whether that rank uses MPI.
  bool uses_mpi(int local_rank) const { return node_.uses_mpi(local_rank); }

 private:
  static constexpr std::chrono::seconds kTellOfBarrierAfter{30};
  static constexpr std::chrono::seconds kCauseMayShow{1};
  static constexpr size_t kMostUnsent = 64u << 10;

  struct Rank {
    runtime::FileDescriptor ours;
    runtime::FileDescriptor theirs;
    std::string unread;  // the beginning of a line
    std::string unsent;
  };

  void OnReady(int local_rank, uint32_t events);
  // Returns false when the connection has ended.
  bool ReadSome(int local_rank);
  void Close(int local_rank);
  void Send(int local_rank, const std::string& line);
  void SendUnsent(int local_rank);
  void Handle(const Pmi1Node::Events& events);
  void GetStuck(int local_rank, const std::string& why);
  void WatchBarrier();

  EventLoop* loop_;
  const v1::Assignment& assignment_;
  Callbacks callbacks_;
  Pmi1Node node_;
  ValueExchange exchange_;
  std::vector<Rank> ranks_;
  EventLoop::TimerId stuck_timer_ = 0;
  EventLoop::TimerId barrier_timer_ = 0;  // set while some ranks wait for others of this node
};

}  // namespace cohort::launcher
