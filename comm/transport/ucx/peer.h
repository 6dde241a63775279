// The transport's state of one other process.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "cohort/comm/transport/net/link_table.h"
#include "cohort/comm/transport/ucx/wire.h"
#include "cohort/comm/transport/ucx/worker.h"

namespace cohort::comm::ucx {

class LinkState;
class PeerKeeper;

enum class PeerState : uint8_t { kUnknown, kLookingUp, kConnected, kFailed };

struct Peer {
  int world_rank = -1;
  PeerKeeper* keeper = nullptr;
  PeerState state = PeerState::kUnknown;
  SessionKey send_key = {};  // from kConnected on
  SessionKey receive_key = {};
  bool proved = false;  // its hello was right: receive_key is its key
  Nonce nonce = {};     // of its hello
  ucp_ep_h endpoint = nullptr;
  Worker::ErrorHandler error_handler;
  absl::Status status;  // why, in kFailed
  std::chrono::steady_clock::time_point failed_at;
  uint64_t outstanding = 0;  // Charge() of what it has been sent and not reported as consumed, on all links
  net::PeerLinks<LinkState> links;
};

// The transport's services for links.
class PeerKeeper {
 public:
  virtual ~PeerKeeper() = default;
  // Starts to find the peer's address unless it is known or being looked for.
  virtual void WantConnection(Peer& peer) = 0;
  // The peer can't be used any more. Its endpoint is closed from the next Poll on. The first status stays.
  virtual void FailPeer(Peer& peer, const absl::Status& status) = 0;
  // link.Report() could not report yet: calls it again from Poll, until it does.
  virtual void ReportLater(LinkState& link) = 0;
  // Closes what FailPeer left open, at once. Not from within callbacks of the worker.
  virtual void CloseFailed() = 0;
  // How long an abandoned link may wait for a living peer to finish or drop what is under way. Links abandoned one
  // after another, as those of a failed group are, share the time: all else of the process waits meanwhile.
  virtual std::chrono::nanoseconds DrainTime() = 0;
};

}  // namespace cohort::comm::ucx
