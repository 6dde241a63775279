#include "cohort/comm/transport/tcp/tcp_transport.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/transport/net/address_book.h"
#include "cohort/comm/transport/net/net_interface.h"
#include "cohort/comm/transport/net/ordered_link.h"
#include "cohort/comm/transport/net/reach.h"
#include "cohort/comm/transport/tcp/dialer.h"
#include "cohort/comm/transport/tcp/entrance.h"
#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/comm/transport/tcp/link.h"
#include "cohort/comm/transport/tcp/link_state.h"
#include "cohort/comm/transport/tcp/peer.h"
#include "cohort/comm/transport/tcp/rail_ports.h"
#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/comm/transport/tcp/socket/watch.h"
#include "cohort/comm/transport/tcp/tls_stream.h"
#include "cohort/runtime/base/cpu_budget.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace tcp {
namespace {

// How long the end waits for what was sent to reach the peers' machines.
constexpr std::chrono::milliseconds kCloseLimit(500);
// Sockets of posted receives are read without asking epoll, which would cost 0.6 us, while there are so few.
constexpr size_t kMostReadDirectly = 4;
// All other sockets are read in every 16th Poll.
constexpr uint32_t kPollsPerLook = 16;
// Number of looks for which a frame is left in its socket: its receive is probably posted soon and then copied once.
constexpr int kMostHeldLooks = 16;

// Tokens of the watch: ranks come first.
constexpr uint64_t kListener = uint64_t{1} << 40;
constexpr uint64_t kAccepted = uint64_t{1} << 41;
constexpr uint64_t kDialed = uint64_t{1} << 62;

std::string Describe(const runtime::Identity& identity, const std::string& interface, const RailPorts& rail_ports,
                     bool encrypt) {
  std::string text = "TCP sockets on " + interface;
  if (!identity.data_interface_ip.empty()) text += " (" + identity.data_interface_ip + ")";
  const int rails = static_cast<int>(rail_ports.addresses().size());
  for (int rail = 1; rail <= rails; ++rail) text += ", " + rail_ports.NameOf(rail);
  if (encrypt) text += ", encrypted by " + DescribeEncryption();
  return text + (identity.nodes_share_host ? ": nodes share this host" : "");
}

class TcpTransport : public Transport, public PeerKeeper {
 public:
  TcpTransport(const runtime::Identity& identity, runtime::KeyValueStore* store, bool encrypt)
      : identity_(identity),
        encrypt_(encrypt),
        limits_(LimitsOf(identity.world_size)),
        terms_{identity.job_secret, identity.job_id,     identity.epoch,
               identity.rank,       identity.world_size, ConfigurationOf(limits_, encrypt)},
        entrance_(&terms_, &watch_, kListener, kAccepted),
        dialer_(&terms_, &watch_, kDialed),
        peers_(static_cast<size_t>(identity.world_size)),
        links_(LinkMaker(limits_, &pending_operations_)),
        book_(store, "tcp", identity.epoch, [this] { watch_.Signal(); }) {}
  ~TcpTransport() override;
  absl::Status Init(const TcpOptions& options, std::string* description);

  bool Poll() override;
  bool Active() const override;
  int Arm(bool* ready) override;

  std::string_view name() const override { return "tcp"; }
  bool Reaches(int world_rank) const override { return net::OnAnotherNode(identity_, world_rank); }
  absl::StatusOr<std::unique_ptr<Link>> Connect(const LinkSpec& spec) override;
  void OnGroupEnd(uint64_t group, uint32_t epoch) override { links_.EndGroup(group, epoch); }
  void OnPeerLost(int world_rank, const absl::Status& status) override;

  void WantConnection(Peer& peer) override;
  void FailPeer(Peer& peer, const absl::Status& status) override;
  bool ReadFor(Peer& peer, bool long_expected, const bool* enough) override;
  void OnWriteError(Peer& peer) override;
  void ReportLater(LinkReceiver& link) override { reports_.Add(link); }

 private:
  Peer* FindPeer(int world_rank);
  absl::Status Dial(Peer& peer, const std::string& text);
  void StopLookingUp(Peer& peer);
  bool TakeAnswers();
  bool Bind(Peer& peer, HandshakeSocket& socket);
  bool Handshakes();
  bool Look();
  void Note(Peer& peer);
  void NoteLeft(Peer& peer);
  bool ReadNoted(bool keep);
  bool ReadFrom(Peer& peer, bool keep, bool long_expected, const bool* enough);

  const runtime::Identity identity_;
  const bool encrypt_;
  const bool shares_cpu_ =
      runtime::Oversubscribed(identity_.nodes_share_host ? identity_.world_size : identity_.local_world_size);
  const FlowLimits limits_;
  const HandshakeTerms terms_;
  std::string interface_;            // for people
  std::unique_ptr<TlsContext> tls_;  // null: data travel as they are
  Watch watch_;
  Entrance entrance_;
  Dialer dialer_;
  RailPorts rail_ports_{&terms_, &watch_, {kListener, kAccepted, kDialed}};
  std::vector<std::unique_ptr<Peer>> peers_;         // by world rank
  std::vector<Peer*> ready_;                         // have something to read, or a frame that waits for its receive
  std::vector<Peer*> noted_;                         // those of them that are being read
  std::vector<std::unique_ptr<Connection>> closed_;  // of failed peers, destroyed by the next Poll
  net::OwedReports<LinkReceiver> reports_;
  size_t looking_up_ = 0;
  size_t pending_operations_ = 0;
  size_t awaited_peers_ = 0;
  uint32_t polls_ = 0;
  uint32_t direct_reads_ = 0;
  uint32_t polls_seen_ = 0;
  LinkTable links_;
  net::AddressBook book_;  // last: its thread signals the watch
};

absl::Status TcpTransport::Init(const TcpOptions& options, std::string* description) {
  TakeDescriptors();
  interface_ = "all interfaces";
  if (!identity_.data_interface_ip.empty()) {
    COHORT_ASSIGN_OR_RETURN(interface_, net::InterfaceOf(identity_.data_interface_ip));
  }
  if (encrypt_) {
    COHORT_ASSIGN_OR_RETURN(tls_, TlsContext::Make());
  }
  COHORT_RETURN_IF_ERROR(watch_.Open());
  const int buffer_bytes = options.small_sockets ? 0 : SocketBufferBytes(identity_.world_size);
  dialer_.set_buffer_bytes(buffer_bytes);
  COHORT_RETURN_IF_ERROR(entrance_.Open(identity_.data_interface_ip, options.port_range, buffer_bytes));
  // Data on a rail would not be encrypted.
  if (!encrypt_) {
    COHORT_RETURN_IF_ERROR(rail_ports_.Open(options.further_ips, options.port_range, buffer_bytes));
  }
  links_.set_released([this](LinkState& link) { reports_.Remove(link.receiver); });
  if (description != nullptr) *description = Describe(identity_, interface_, rail_ports_, encrypt_);
  return book_.Publish(identity_.rank,
                       ToText(Published{terms_.configuration, entrance_.addresses(), rail_ports_.addresses()}));
}

TcpTransport::~TcpTransport() {
  book_.Stop();  // its thread signals the watch
  links_.Clear();
  const runtime::Deadline deadline = runtime::Deadline::After(kCloseLimit);
  for (const auto& peer : peers_) {
    if (peer == nullptr || peer->connection == nullptr) continue;
    Connection& connection = *peer->connection;
    while (connection.write_error().ok() && connection.unacknowledged() && !deadline.passed()) {
      if (!connection.Flush()) poll(nullptr, 0, 1);
    }
  }
}

Peer* TcpTransport::FindPeer(int world_rank) {
  if (world_rank < 0 || world_rank >= identity_.world_size || world_rank == identity_.rank) return nullptr;
  std::unique_ptr<Peer>& peer = peers_[static_cast<size_t>(world_rank)];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>();
    peer->world_rank = world_rank;
    peer->keeper = this;
    peer->awaited_peers = &awaited_peers_;
    peer->may_add_rails = !rail_ports_.empty();
  }
  return peer.get();
}

absl::StatusOr<std::unique_ptr<Link>> TcpTransport::Connect(const LinkSpec& spec) {
  if (!Reaches(spec.peer_world_rank)) {
    return absl::InvalidArgumentError("rank " + std::to_string(spec.peer_world_rank) + " is not on another node");
  }
  COHORT_ASSIGN_OR_RETURN(LinkState* const link, links_.Connect(spec, *FindPeer(spec.peer_world_rank)));
  return std::make_unique<TcpLink>(&links_, link, shares_cpu_);
}

// ---- connections ----

void TcpTransport::WantConnection(Peer& peer) {
  if (peer.state == PeerState::kUnknown) {
    peer.state = PeerState::kLookingUp;
  } else if (peer.state == PeerState::kConnected && std::exchange(peer.may_add_rails, false)) {
    peer.looking_up_rails = true;
  } else {
    return;
  }
  ++looking_up_;
  book_.LookUp(peer.world_rank);
}

void TcpTransport::StopLookingUp(Peer& peer) {
  if (peer.state != PeerState::kLookingUp && !peer.looking_up_rails) return;
  --looking_up_;
  book_.Forget(peer.world_rank);
  peer.looking_up_rails = false;
}

bool TcpTransport::TakeAnswers() {
  const std::vector<net::AddressBook::Answer> answers = book_.Take();
  for (const net::AddressBook::Answer& answer : answers) {
    Peer& peer = *peers_[static_cast<size_t>(answer.world_rank)];
    if (std::exchange(peer.looking_up_rails, false)) {
      --looking_up_;
      if (answer.value.ok()) rail_ports_.Dial(peer, *answer.value);
      continue;
    }
    if (peer.state != PeerState::kLookingUp) continue;
    --looking_up_;
    peer.state = PeerState::kDialing;
    const absl::Status begun = answer.value.ok() ? Dial(peer, *answer.value) : answer.value.status();
    if (begun.ok()) continue;
    const std::string rank = "rank " + std::to_string(peer.world_rank);
    FailPeer(peer, absl::Status(absl::IsFailedPrecondition(begun) ? begun.code() : absl::StatusCode::kUnavailable,
                                rank + " can't be talked to over " + interface_ + ": " + std::string(begun.message())));
  }
  return !answers.empty();
}

absl::Status TcpTransport::Dial(Peer& peer, const std::string& text) {
  absl::StatusOr<Published> published = ParsePublished(text);
  if (!published.ok()) return absl::FailedPreconditionError(std::string(published.status().message()));
  if (published->configuration == ConfigurationOf(limits_, !encrypt_)) {
    return absl::FailedPreconditionError(
        std::string(encrypt_ ? "it does not encrypt data, this rank does" : "it encrypts data, this rank does not") +
        ": start the job by dlaunch --encrypt-data, or set COHORT_ENCRYPT_DATA alike "
        "on all ranks");
  }
  if (published->configuration != terms_.configuration) {
    return absl::FailedPreconditionError("it moves messages as " + published->configuration + ", this rank as " +
                                         terms_.configuration + ": start all ranks from the same build");
  }
  dialer_.Start(peer.world_rank, std::move(published->addresses));
  return absl::OkStatus();
}

// Both sides are proved. False: this connection is not the one to use.
bool TcpTransport::Bind(Peer& peer, HandshakeSocket& socket) {
  if (peer.state == PeerState::kConnected || peer.state == PeerState::kFailed) return false;
  const Handshake& handshake = socket.handshake();
  std::unique_ptr<TlsStream> stream;
  if (encrypt_) {
    const absl::StatusOr<net::Mac> key = handshake.TlsKey();
    if (!key.ok()) {
      FailPeer(peer, key.status());
      return false;
    }
    auto made = TlsStream::Make(*tls_, socket.descriptor(), handshake.initiator(), *key);
    if (!made.ok()) {
      FailPeer(peer, made.status());
      return false;
    }
    stream = *std::move(made);
  }
  if (!watch_.Rename(socket.descriptor(), static_cast<uint64_t>(peer.world_rank)) || !socket.SendReply()) return false;
  StopLookingUp(peer);
  peer.connection = std::make_unique<Connection>(socket.Release(), handshake.send_key(), handshake.receive_key(),
                                                 std::make_unique<FrameRouter>(&links_, &peer), std::move(stream));
  peer.state = PeerState::kConnected;
  dialer_.Stop(peer.world_rank);
  Note(peer);
  return true;
}

bool TcpTransport::Handshakes() {
  bool moved = entrance_.Poll([this](std::unique_ptr<HandshakeSocket> socket) {
    const int rank = socket->handshake().peer();
    if (!Reaches(rank)) return;
    // The lower rank has decided for the connection that it has confirmed.
    if (identity_.rank < rank && dialer_.AwaitsWelcome(rank)) return;
    Bind(*FindPeer(rank), *socket);
  });
  moved |=
      dialer_.Poll([this](int rank, HandshakeSocket& socket) { return Bind(*FindPeer(rank), socket); },
                   [this](int rank, const absl::Status& status) {
                     FailPeer(*FindPeer(rank), absl::UnavailableError("can't connect to rank " + std::to_string(rank) +
                                                                      " at " + std::string(status.message())));
                   });
  if (rail_ports_.empty()) return moved;
  return rail_ports_.Poll([this](int rank) { return Reaches(rank) ? FindPeer(rank) : nullptr; },
                          [this](Peer& peer) { Note(peer); }) ||
         moved;
}

void TcpTransport::FailPeer(Peer& peer, const absl::Status& status) {
  if (peer.state == PeerState::kFailed) return;
  StopLookingUp(peer);
  peer.state = PeerState::kFailed;
  peer.status = status;
  dialer_.Stop(peer.world_rank);
  rail_ports_.Stop(peer.world_rank);
  // It may be reading or writing just now.
  if (peer.connection != nullptr) closed_.push_back(std::move(peer.connection));
}

void TcpTransport::OnPeerLost(int world_rank, const absl::Status& status) {
  if (Peer* peer = FindPeer(world_rank); peer != nullptr) FailPeer(*peer, status);
}

// ---- reading ----

bool TcpTransport::ReadFrom(Peer& peer, bool keep, bool long_expected, const bool* enough) {
  Connection& connection = *peer.connection;
  // Something behind a frame that waits may be what this process waits for.
  keep = keep || peer.stalled_sends > 0 || peer.held_looks > kMostHeldLooks || !connection.write_error().ok();
  const bool moved = connection.Read(keep, long_expected, enough);
  if (peer.state != PeerState::kConnected) return true;  // it has failed meanwhile
  peer.held_looks = connection.holding() ? peer.held_looks + 1 : 0;
  if (!connection.read_error().ok()) {
    FailPeer(peer, absl::UnavailableError("lost the connection to rank " + std::to_string(peer.world_rank) + ": " +
                                          std::string(connection.read_error().message())));
  } else if (!connection.write_error().ok() && !connection.readable()) {
    FailPeer(peer, absl::UnavailableError("lost the connection to rank " + std::to_string(peer.world_rank) + ": " +
                                          std::string(connection.write_error().message())));
  }
  return moved;
}

bool TcpTransport::ReadFor(Peer& peer, bool long_expected, const bool* enough) {
  // A rank may make calls alone that nobody polls for, and other peers wait for it too.
  if (++direct_reads_ % kPollsPerLook == 0 && std::exchange(polls_seen_, polls_) == polls_) {
    Look();
    Poll();
    if (peer.state != PeerState::kConnected || (enough != nullptr && *enough)) return true;
  }
  const Connection& connection = *peer.connection;
  const bool knows_of_none = !connection.readable() && !connection.buffering() && !peer.in_ready;
  if (knows_of_none && awaited_peers_ > kMostReadDirectly) return false;
  const bool moved = ReadFrom(peer, /*keep=*/false, long_expected, enough);
  if (peer.state == PeerState::kConnected) NoteLeft(peer);
  return moved;
}

// Notes a peer whose socket or buffer may hold more: no event may come for that.
void TcpTransport::NoteLeft(Peer& peer) {
  const Connection& connection = *peer.connection;
  if (connection.readable() || connection.buffering() || !connection.read_error().ok()) Note(peer);
}

void TcpTransport::OnWriteError(Peer& peer) {
  if (peer.state == PeerState::kConnected) Note(peer);
}

void TcpTransport::Note(Peer& peer) {
  if (!std::exchange(peer.in_ready, true)) ready_.push_back(&peer);
}

bool TcpTransport::ReadNoted(bool keep) {
  bool moved = false;
  noted_.swap(ready_);
  for (Peer* peer : noted_) {
    peer->in_ready = false;
    if (peer->state != PeerState::kConnected) continue;
    const bool more = ReadFrom(*peer, keep, /*long_expected=*/false, nullptr);
    moved = moved || more;
    if (peer->state != PeerState::kConnected) continue;
    if (more || peer->connection->readable() || peer->connection->holding()) Note(*peer);
  }
  noted_.clear();
  return moved;
}

bool TcpTransport::Look() {
  return watch_.Look([this](uint64_t token, bool ending) {
    const int rail = RailPorts::RailOf(token);
    const uint64_t rank = token - RailPorts::TokenOf(rail, 0);
    if (rank < peers_.size()) {
      Peer* peer = peers_[rank].get();
      if (peer == nullptr || peer->connection == nullptr) return;
      peer->connection->OnEvent(ending, rail);
      peer->connection->Flush();
      Note(*peer);
    } else if (rail != 0) {
      rail_ports_.OnEvent(token);
    } else if (token == kListener) {
      entrance_.OnListener();
    } else if (token >= kDialed) {
      dialer_.OnSocket(token);
    } else {
      entrance_.OnSocket(token);
    }
  });
}

// ---- progress ----

bool TcpTransport::Poll() {
  bool moved = false;
  if (looking_up_ > 0) moved |= TakeAnswers();
  const bool greeting = dialer_.active() || entrance_.waiting() > 0 || rail_ports_.busy();
  if (++polls_ % kPollsPerLook == 0 || greeting || awaited_peers_ > kMostReadDirectly) Look();
  if (greeting || entrance_.due() || rail_ports_.due()) moved |= Handshakes();
  if (!ready_.empty()) moved |= ReadNoted(/*keep=*/false);
  moved |= reports_.Send();
  if (!closed_.empty()) closed_.clear();
  return moved;
}

bool TcpTransport::Active() const {
  const auto flushing = [](const std::unique_ptr<Peer>& peer) {
    return peer != nullptr && peer->connection != nullptr && peer->connection->flushing();
  };
  return pending_operations_ > 0 || looking_up_ > 0 || dialer_.active() || entrance_.waiting() > 0 ||
         rail_ports_.busy() || !reports_.empty() || std::any_of(peers_.begin(), peers_.end(), flushing);
}

int TcpTransport::Arm(bool* ready) {
  // Frames that nobody wanted yet are taken in before this process sleeps, so that its sender can go on.
  if (Look() || (!ready_.empty() && ReadNoted(/*keep=*/true)) || entrance_.due() || entrance_.full() ||
      rail_ports_.due()) {
    *ready = true;
  }
  return watch_.descriptor();
}

}  // namespace
}  // namespace tcp

absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(const runtime::Identity& identity,
                                                            runtime::KeyValueStore* store, const TcpOptions& options,
                                                            std::string* description) {
  auto transport = std::make_unique<tcp::TcpTransport>(identity, store, options.encrypt);
  COHORT_RETURN_IF_ERROR(transport->Init(options, description));
  return transport;
}

}  // namespace cohort::comm
