// Serves programs of MPICH's family: a socket for each rank of the node, over which its MPI library speaks PMI-1
// (pmi1_node.h).
//
// On the agent's event loop; nothing blocks. A rank that speaks no PMI-1 costs a pair of sockets.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/mpi/left_news.h"
#include "cohort/launcher/agent/mpi/node_places.h"
#include "cohort/launcher/agent/mpi/pmi1_node.h"
#include "cohort/launcher/agent/mpi/service_names.h"
#include "cohort/launcher/agent/mpi/value_exchange.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class Pmi1Service {
 public:
  struct Callbacks {
    std::function<void(const std::string&)> on_notice;  // a line for the user
    // This local rank has called MPI_Abort with that code and waits to be killed.
    std::function<void(int local_rank, int code)> on_abort;
    // This local rank can't go on.
    std::function<void(int local_rank, const std::string& why)> on_stuck;
    // This local rank asks for new processes.
    std::function<void(int local_rank, const SpawnRequest& request, SpawnDone done)> on_spawn;
  };
  // A world that a rank has asked for.
  struct Spawned {
    std::vector<std::pair<std::string, std::string>> values;  // that its ranks find
  };

  // The assignment and the store outlive this object. A barrier that waits for `patience` is told. `spawned`: not the
  // job's own ranks, but a world that one of them has asked for.
  Pmi1Service(EventLoop* loop, const v1::Assignment& assignment, StoredValues* store, Callbacks callbacks,
              std::chrono::nanoseconds patience, std::optional<Spawned> spawned = std::nullopt);
  ~Pmi1Service();
  Pmi1Service(const Pmi1Service&) = delete;
  Pmi1Service& operator=(const Pmi1Service&) = delete;

  // Makes the sockets. kResourceExhausted: there are no descriptors.
  absl::Status Start();
  // The rank's end of its socket, which it inherits, and the variables by which its MPI library finds it. After Start.
  int InheritedBy(int local_rank) const { return ranks_[static_cast<size_t>(local_rank)].theirs.get(); }
  std::vector<std::string> EnvironmentOf(int local_rank) const;
  // The ranks have been started: only they hold their ends from now on.
  void CloseInherited();
  // A rank's process has ended. Another that it started may still hold its end.
  void OnEnded(int local_rank);

  MpiUse UseOf(int local_rank) const { return node_.UseOf(local_rank); }

 private:
  static constexpr size_t kMostUnsent = 64u << 10;

  struct Rank {
    runtime::FileDescriptor ours;
    runtime::FileDescriptor theirs;
    std::string unread;  // the beginning of a line
    std::string unsent;
    int unanswered = 0;  // calls that something else will answer; nothing more is read meanwhile
  };

  void OnReady(int local_rank, uint32_t events);
  // Returns false when the connection has ended.
  bool ReadSome(int local_rank);
  void Close(int local_rank);
  void Send(int local_rank, const std::string& line);
  void SendUnsent(int local_rank);
  void Handle(const Pmi1Node::Events& events);
  void Exchange(const Pmi1Node::Publish& publish);
  void Do(const Pmi1Node::NameCall& call);
  void Do(const Pmi1Node::Spawn& spawn);
  // Reads no more of that rank until the result is called with the answer.
  std::function<void(const std::string& line)> AnswerLater(int local_rank);
  void WatchBarrier();
  void TellOfBarrier() const;

  EventLoop* loop_;
  const v1::Assignment& assignment_;
  Callbacks callbacks_;
  const NodePlaces places_;
  Pmi1Node node_;
  ValueExchange exchange_;
  LeftNews left_news_;
  ServiceNames names_;
  const bool spawned_;
  std::vector<Rank> ranks_;
  const std::chrono::nanoseconds patience_;
  EventLoop::TimerId barrier_timer_ = 0;                        // set while a barrier waits
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  // for answers that come later
};

}  // namespace cohort::launcher
