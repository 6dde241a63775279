// An agent's way to the rendezvous: the stream to it, on the first node the rendezvous itself, and with standbys the
// way from one host to the next (see replicated_rendezvous.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/agent/link/link_life.h"
#include "cohort/launcher/agent/link/own_rendezvous.h"
#include "cohort/launcher/agent/link/succession.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/control/hosted_rendezvous.h"
#include "cohort/launcher/rpc/client.h"
#include "cohort/launcher/rpc/server.h"
#include "cohort/runtime/base/checked_state.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// The address of a rendezvous that serves its host's agent alone.
inline constexpr char kInProcess[] = "in-process";

// All of it is called on the loop's thread, and the events come there.
class RendezvousLink {
 public:
  struct Message {
    const v1::ToAgent* message;  // until the handler returns
  };
  // The rendezvous is gone, and why; OK after its report or its refusal. With standbys, none has taken over in time;
  // it comes again if another takes over after a report, and is lost too.
  struct Lost {
    absl::Status why;
  };
  // This node stands by, and has lost the host of that term.
  struct HostSilent {
    uint64_t term;
  };
  // The rendezvous that this node hosts has something for dlaunch (HostedRendezvous::OnNews).
  struct News {
    v1::FromNode news;
  };
  // The same rendezvous has ended the job.
  struct Finished {
    v1::JobReport report;
  };
  using Event = std::variant<Message, Lost, HostSilent, News, Finished>;
  using Handler = std::function<void(const Event&)>;

  RendezvousLink(EventLoop* loop, Handler handle)
      : loop_(loop), handle_(std::move(handle)), succession_(Succession::None()) {}
  ~RendezvousLink();
  RendezvousLink(const RendezvousLink&) = delete;
  RendezvousLink& operator=(const RendezvousLink&) = delete;

  // Hosts the rendezvous of start.plan. Returns the addresses that others reach it at, separated by commas, best first;
  // kInProcess where dlaunch gave no certificate, since this agent is the only one. Not OK: no port, no address on
  // --iface, a malformed plan.
  absl::StatusOr<std::string> Host(const v1::NodeStart& start);
  // The same where this node has stood by. kFailedPrecondition: it has not.
  absl::StatusOr<std::string> TakeOver(const v1::TakeOver& order);

  // Joins it at the first of `addresses` that answers, as the node that `start` names. Blocks for 40 s at most, or
  // until `given_up`, which is asked now and then, says so. Where `given_up` has called MoveTo meanwhile, goes there
  // instead, and does not block for that.
  absl::Status Join(const v1::NodeStart& start, const std::string& addresses, const std::function<bool()>& given_up);
  // Another agent is the host now, or this one. Does not block; where it can't be reached, Lost comes in time.
  void MoveTo(const v1::NewHost& host);

  // The rendezvous itself, where this node hosts it; else null. MoveTo may end it.
  HostedRendezvous* hosted() { return server_.get(); }
  // Whether this node has a copy of the rendezvous, and may be told to take over.
  bool standing_by() { return succession_->standing_by(); }
  // This machine's address in the network between nodes, once joined.
  const std::string& data_interface_ip() const { return data_interface_ip_; }

  // Messages sent before Join, or without standbys after the end of the stream, are dropped. With standbys it reaches
  // the next host.
  void Send(const v1::FromAgent& message);
  // Ends the stream for good, without a word, within two seconds: to the rendezvous this node is lost. Not where it is
  // hosted here.
  void Abandon();
  // Writes what is queued, for a second at most, and ends the stream.
  void Close();

 private:
  void Begin(const v1::NodeStart& start);
  absl::StatusOr<std::shared_ptr<RendezvousClient>> JoinFirstHost(const std::string& addresses,
                                                                  const std::function<bool()>& given_up);
  v1::NodeOffer MakeOffer() const;
  RendezvousClient::Callbacks StreamCallbacks();
  void BeginStream(std::shared_ptr<RendezvousClient> client);
  void OnMessage(uint64_t stream, const v1::ToAgent& message);
  void OnStreamEnded(uint64_t stream, const absl::Status& why);
  void Finish(LinkLife life);  // no other host is awaited
  void WaitForHost(const absl::Status& why);
  void Leave();
  void LeaveHost();
  void GoToHost();
  void OnMoved(uint64_t stream, const std::shared_ptr<RendezvousClient>& client);
  void Write(const v1::FromAgent& message);

  EventLoop* const loop_;
  const Handler handle_;
  v1::NodeStart start_;
  std::string data_interface_ip_;

  std::unique_ptr<Succession> succession_;
  v1::NodeTable nodes_;  // of the latest assignment
  runtime::CheckedState<LinkLife> life_{LinkLife::kApart};
  std::atomic<uint64_t> term_ = 1;  // the thread that dials for another one stops
  uint64_t stream_ = 0;             // counts streams, so that the end of one that was left is no news
  EventLoop::TimerId wait_timer_ = 0;
  v1::NewHost next_host_;
  // Messages of a stream that came before it was client_, with its number.
  std::vector<std::pair<uint64_t, v1::ToAgent>> early_;
  std::optional<std::pair<uint64_t, absl::Status>> early_end_;

  std::unique_ptr<HostedRendezvous> server_;
  OwnRendezvous* own_ = nullptr;  // the same, where it has no port
  std::shared_ptr<RendezvousClient> client_;
  std::thread mover_;
};

// A port that is free here now, for the ranks' own rendezvous; 0 where none is.
uint32_t FreeMasterPort(const v1::NodeStart& start);
// "no port is free for MASTER_PORT in --port-range 1:2; give a wider one"
std::string WhyNoMasterPort(const v1::NodeStart& start);

}  // namespace cohort::launcher
