// Serves an agent's ranks over their socket: tells each who it is, hands out the node segment, carries their
// requests to the rendezvous and the answers back, and passes on news. See proto/cohort/v1/agent.proto.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/rank/node_preemption.h"
#include "cohort/launcher/agent/rank/rank_socket.h"
#include "cohort/launcher/agent/rank/rank_waits.h"
#include "cohort/launcher/agent/rank/store_relay.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/segment/epoch_segments.h"
#include "cohort/runtime/segment/segment.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RankService {
 public:
  // A local rank has said hello, for the first time or after a goodbye. `pid`: the process that did; a descendant of
  // the one that was started, if that is a wrapper. `stays`: after a failure it may join the next epoch itself.
  struct Hello {
    int local_rank;
    pid_t pid;
    bool stays;
  };
  // The calls of a local rank are recorded from now on, by a process that does not join.
  struct Recorded {
    int local_rank;
    pid_t pid;
  };
  struct Goodbye {
    int local_rank;
  };
  // It has left the epoch and waits for the next: for the end of this service, that is.
  struct EpochLeft {
    int local_rank;
  };
  // It asks to be killed, and says why.
  struct KillWanted {
    int local_rank;
    std::string why;
  };
  // It had said hello, and no goodbye, and has closed its connection. `pid`: the process that had said it.
  struct Vanished {
    int local_rank;
    pid_t pid;
  };
  using Event = std::variant<Hello, Recorded, Goodbye, EpochLeft, KillWanted, Vanished>;
  struct Callbacks {
    std::function<void(const v1::FromAgent&)> to_rendezvous;
    std::function<void(const v1::AgentMessage&)> to_agent;  // answers to the agent's own calls on the store
    // The process group of a local rank, 0 when it is not running; decides who may say hello for it.
    std::function<pid_t(int local_rank)> group_of;
    std::function<void(const Event&)> on_event;
  };

  RankService(EventLoop* loop, const v1::Assignment& assignment, std::string data_interface_ip, Callbacks callbacks);

  // Makes the node segment and listens at `address`.
  absl::Status Start(const std::string& address);

  // Messages of the rendezvous for ranks.
  void OnGroupFailure(const v1::GroupFailure& failure);
  void OnRanksLost(const v1::RanksLost& lost);
  v1::InspectReply Inspect(const v1::InspectRequest& request);
  void OnPreemption(const v1::PreemptionNotice& notice);
  void OnStopStep(const v1::StopStep& step);

  // Whether a rank of this node asks for notices of a preemption.
  bool asks_for_notices() const { return preemption_.any_wished(); }

  // A local rank has ended: passes on what it had sent, so that a rank that learns of its end finds all that it left in
  // the store. With `for_good` nothing later of it counts (what it started may live on).
  void TakeRest(int local_rank, bool for_good);
  // Marks a local rank as gone, before anyone is told.
  void MarkLost(int local_rank);
  // Marks it as ended in order.
  void MarkEnded(int local_rank);
  // Takes the rendezvous' answers to calls on the store.
  StoreRelay& store() { return store_; }
  // The calls and waits of the ranks. After Start.
  RankWaits& waits() { return *waits_; }

 private:
  // A connection that has said hello. The end of one that has not joined is no news.
  //
  //   kRecords                            it gives way to a process that joins
  //   kJoined ── goodbye ──► kFinalized   it may join again
  //      └── next epoch ──► kLeftEpoch
  enum class PeerState : uint8_t { kRecords, kJoined, kFinalized, kLeftEpoch };
  struct Peer {
    int local_rank = -1;
    pid_t pid = 0;
    PeerState state = PeerState::kJoined;
  };

  void OnPacket(RankSocket::PeerId from, const std::string& packet);
  // Whether a rank of this node has just said so: all that wait in a call whose time is over do.
  bool SaidAlready(const v1::GroupFailure& failure);
  void OnClosed(RankSocket::PeerId from);
  void OnHello(RankSocket::PeerId from, const v1::RankHello& hello);
  // Ends the connection by which a rank had joined and finalized, or, before one that joins, was recorded.
  void EndFormer(int local_rank, bool newcomer_joins);
  std::string WhyRefused(RankSocket::PeerId from, const v1::RankHello& hello);
  void Welcome(RankSocket::PeerId to, int local_rank);
  void OnNodes(RankSocket::PeerId from, const v1::NodesRequest& request);
  void SendTo(RankSocket::PeerId to, const v1::AgentMessage& message, int fd = -1);
  void SendToRank(int local_rank, const v1::AgentMessage& message);
  bool Joined(int local_rank) const;  // and has not left
  void TellEarlyNews(int local_rank);
  void OnNextEpoch(RankSocket::PeerId from);
  void OnPreemptionWish(int local_rank);
  void AnswerPreemption();
  int LocalRankOf(uint32_t rank) const;  // -1: of another node

  const v1::Assignment& assignment_;
  const std::string data_interface_ip_;
  Callbacks callbacks_;
  RankSocket socket_;
  runtime::EpochSegments segments_;
  std::unique_ptr<RankWaits> waits_;
  std::unordered_map<RankSocket::PeerId, Peer> peers_;
  std::vector<RankSocket::PeerId> peer_of_rank_;  // 0: not connected
  StoreRelay store_;
  std::pair<uint64_t, uint64_t> last_expired_;  // the group, by id and epoch, that SaidAlready saw last
  NodePreemption preemption_;
  // Failures of groups, for local ranks that have not said hello, which are told then. Every hello is answered with
  // the lost ranks: a rank that joins again does not remember them.
  static constexpr size_t kMaxEarlyNews = 4096;
  std::vector<std::pair<int, v1::AgentMessage>> early_news_;
  std::vector<v1::AgentMessage> losses_;
};

}  // namespace cohort::launcher
