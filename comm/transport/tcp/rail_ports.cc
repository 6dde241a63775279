#include "cohort/comm/transport/tcp/rail_ports.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cohort/comm/transport/net/net_interface.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::tcp {

absl::Status RailPorts::Open(const std::vector<std::string>& ips, const std::string& port_range, int buffer_bytes) {
  if (ips.size() >= kMostRails) {
    return absl::InvalidArgumentError("COHORT_DATA_ADDRESS names " + std::to_string(ips.size() + 1) +
                                      " interfaces; at most " + std::to_string(kMostRails) + " are used together");
  }
  for (const std::string& ip : ips) {
    const int rail = static_cast<int>(ports_.size()) + 1;
    HandshakeTerms terms = *terms_;
    terms.configuration += "/rail" + std::to_string(rail);
    const Tokens tokens = {TokenOf(rail, tokens_.listener), TokenOf(rail, tokens_.accepted),
                           TokenOf(rail, tokens_.dialed)};
    Port& port = *ports_.emplace_back(std::make_unique<Port>(terms, watch_, tokens));
    COHORT_ASSIGN_OR_RETURN(const std::string interface, net::InterfaceOf(ip));
    port.name = interface + " (" + ip + ")";
    port.dialer.set_buffer_bytes(buffer_bytes);
    port.dialer.set_optional(ip);
    COHORT_RETURN_IF_ERROR(port.entrance.Open(ip, port_range, buffer_bytes));
    addresses_.push_back(port.entrance.addresses().front());
  }
  return absl::OkStatus();
}

void RailPorts::OnEvent(uint64_t token) {
  const int rail = RailOf(token);
  if (static_cast<size_t>(rail) > ports_.size()) return;
  Port& port = At(rail);
  if (token == TokenOf(rail, tokens_.listener)) {
    port.entrance.OnListener();
  } else if (token >= TokenOf(rail, tokens_.dialed)) {
    port.dialer.OnSocket(token);
  } else {
    port.entrance.OnSocket(token);
  }
}

void RailPorts::Dial(const Peer& peer, const std::string& text) {
  // Rails are no more than useful: without them the first connection carries everything.
  const absl::StatusOr<Published> published = ParsePublished(text);
  if (!published.ok() || peer.state != PeerState::kConnected) return;
  const size_t common = std::min(published->rails.size(), ports_.size());
  for (size_t i = 0; i < common; ++i) {
    if (!peer.connection->HasRail(static_cast<int>(i) + 1)) {
      ports_[i]->dialer.Start(peer.world_rank, {published->rails[i]});
    }
  }
}

void RailPorts::Stop(int rank) {
  for (const auto& port : ports_) port->dialer.Stop(rank);
}

bool RailPorts::busy() const {
  return std::any_of(ports_.begin(), ports_.end(),
                     [](const auto& port) { return port->dialer.active() || port->entrance.waiting() > 0; });
}

bool RailPorts::due() const {
  return std::any_of(ports_.begin(), ports_.end(),
                     [](const auto& port) { return port->entrance.due() || port->entrance.full(); });
}

void RailPorts::Tell(Port& port, int rank, const absl::Status& status) {
  if (std::exchange(port.told, true)) return;
  std::fprintf(stderr, "cohort: rank %d can't reach rank %d over %s: %s; the other interfaces carry the data\n",
               terms_->rank, rank, port.name.c_str(), std::string(status.message()).c_str());
}

bool RailPorts::Add(int rail, Peer* peer, HandshakeSocket& socket) {
  if (peer == nullptr || peer->state != PeerState::kConnected || peer->connection->HasRail(rail)) return false;
  const uint64_t token = TokenOf(rail, static_cast<uint64_t>(peer->world_rank));
  if (!watch_->Rename(socket.descriptor(), token) || !socket.SendReply()) return false;
  peer->connection->AddRail(rail, socket.Release(), At(rail).name);
  At(rail).dialer.Stop(peer->world_rank);
  return true;
}

bool RailPorts::Poll(const std::function<Peer*(int rank)>& find, const std::function<void(Peer& peer)>& added) {
  bool moved = false;
  for (size_t i = 0; i < ports_.size(); ++i) {
    Port& port = *ports_[i];
    const auto proved = [&](int rank, HandshakeSocket& socket) {
      Peer* peer = find(rank);
      if (!Add(static_cast<int>(i) + 1, peer, socket)) return false;
      added(*peer);  // a frame may wait for it
      return true;
    };
    moved |= port.entrance.Poll([&](std::unique_ptr<HandshakeSocket> socket) {
      const int rank = socket->handshake().peer();
      // As for the first connection, the lower rank has decided for the one that it has confirmed.
      if (terms_->rank < rank && port.dialer.AwaitsWelcome(rank)) return;
      proved(rank, *socket);
    });
    moved |= port.dialer.Poll(proved, [&](int rank, const absl::Status& status) { Tell(port, rank, status); });
  }
  return moved;
}

}  // namespace cohort::comm::tcp
