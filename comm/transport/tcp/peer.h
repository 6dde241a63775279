// The transport's state of one other process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "cohort/comm/transport/net/link_table.h"
#include "cohort/comm/transport/tcp/connection.h"

namespace cohort::comm::tcp {

class LinkReceiver;
class LinkState;
class PeerKeeper;

// In this order; kConnected may come at any moment, when the other side connects. kFailed is final.
enum class PeerState : uint8_t { kUnknown, kLookingUp, kDialing, kConnected, kFailed };

struct Peer {
  int world_rank = -1;
  PeerKeeper* keeper = nullptr;
  PeerState state = PeerState::kUnknown;
  std::unique_ptr<Connection> connection;  // from kConnected on
  absl::Status status;                     // why, in kFailed
  size_t posted_receives = 0;              // not complete, on all links
  size_t* awaited_peers = nullptr;         // the transport's count of those with any
  size_t stalled_sends = 0;                // links that wait for the peer's grant
  int held_looks = 0;                      // at a frame that nobody wanted yet
  bool in_ready = false;                   // the transport's note
  bool may_add_rails = false;              // once a long frame is sent
  bool looking_up_rails = false;
  net::PeerLinks<LinkState> links;

  void AddPosted() { *awaited_peers += posted_receives++ == 0 ? 1 : 0; }
  void RemovePosted() { *awaited_peers -= --posted_receives == 0 ? 1 : 0; }
};

// The transport's services for links.
class PeerKeeper {
 public:
  virtual ~PeerKeeper() = default;
  // Starts to connect to the peer unless it is connected or that goes on. A connected one that `may_add_rails` is
  // connected over the further interfaces too.
  virtual void WantConnection(Peer& peer) = 0;
  // The peer can't be used any more. The first status stays.
  virtual void FailPeer(Peer& peer, const absl::Status& status) = 0;
  // Reads from the peer's connection, as long as `enough` (may be null) is false. `long_expected`: the data of a long
  // message probably come next.
  virtual bool ReadFor(Peer& peer, bool long_expected, const bool* enough) = 0;
  // Writing has failed. What the peer sent before can still be read; then it fails.
  virtual void OnWriteError(Peer& peer) = 0;
  // link.Report() could not report yet: calls it again from Poll, until it does.
  virtual void ReportLater(LinkReceiver& link) = 0;
};

}  // namespace cohort::comm::tcp
