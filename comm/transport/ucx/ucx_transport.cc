#include "cohort/comm/transport/ucx/ucx_transport.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "cohort/comm/transport/net/address_book.h"
#include "cohort/comm/transport/net/link_table.h"
#include "cohort/comm/transport/net/net_interface.h"
#include "cohort/comm/transport/net/ordered_link.h"
#include "cohort/comm/transport/net/reach.h"
#include "cohort/comm/transport/ucx/link_state.h"
#include "cohort/comm/transport/ucx/peer.h"
#include "cohort/comm/transport/ucx/session.h"
#include "cohort/comm/transport/ucx/wire.h"
#include "cohort/comm/transport/ucx/worker.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace ucx {
namespace {

// Rounds of ucp_worker_progress per Poll; a round moves at most a few segments per connection.
constexpr int kRoundsPerPoll = 1;
// How long the end waits for connections to close in order.
constexpr std::chrono::milliseconds kCloseLimit(500);
// DrainTime: of all links that are abandoned with less than kBetweenDrains between them, and of each at least.
constexpr std::chrono::seconds kDrainLimit(2);
constexpr std::chrono::milliseconds kBetweenDrains(500);
constexpr std::chrono::milliseconds kShortestDrain(20);

using LinkTable = net::LinkTable<LinkState, Peer>;

class UcxLink : public Link {
 public:
  UcxLink(LinkTable* table, LinkState* state) : table_(table), state_(state) {}
  ~UcxLink() override { table_->Release(state_); }
  Progress TrySend(SendOperation& operation) override { return state_->TrySend(operation); }
  Progress TryRecv(RecvOperation& operation) override { return state_->TryRecv(operation); }
  bool wants_early_receives() const override { return true; }

 private:
  LinkTable* const table_;
  LinkState* const state_;
};

class UcxTransport : public Transport, public MessageSink, public PeerKeeper {
 public:
  UcxTransport(const runtime::Identity& identity, runtime::KeyValueStore* store)
      : identity_(identity),
        peers_(static_cast<size_t>(identity.world_size)),
        links_([this](const net::LinkKey& key, Peer& peer, net::BufferPool* buffers) {
          return std::make_unique<LinkState>(key, identity_.rank, peer, worker_.get(), buffers, this,
                                             &pending_operations_);
        }),
        book_(store, "ucx", identity.epoch, [this] { worker_->Signal(); }) {}
  ~UcxTransport() override;

  absl::Status Init(const UcxOptions& options, std::string* description);

  bool Poll() override;
  bool Active() const override;
  int Arm(bool* ready) override { return worker_->Arm(ready); }

  std::string_view name() const override { return "ucx"; }
  bool Reaches(int world_rank) const override { return net::OnAnotherNode(identity_, world_rank); }
  absl::StatusOr<std::unique_ptr<Link>> Connect(const LinkSpec& spec) override;
  void OnPeerLost(int world_rank, const absl::Status& status) override;
  void OnGroupEnd(uint64_t group, uint32_t epoch) override { links_.EndGroup(group, epoch); }

  bool OnMessage(const void* header, size_t header_bytes, void* data, size_t bytes, bool rendezvous) override;
  void OnHello(const void* hello, size_t bytes) override;
  void WantConnection(Peer& peer) override;
  void FailPeer(Peer& peer, const absl::Status& status) override;
  void ReportLater(LinkState& link) override { reports_.Add(link); }
  void CloseFailed() override;
  std::chrono::nanoseconds DrainTime() override;

 private:
  // The peer's entry, made on first use; null when there is no such rank.
  Peer* FindPeer(int world_rank);
  SessionTerms TermsOf(int from, int to, const Nonce& from_nonce, const Nonce& to_nonce) const;
  bool TakeAnswers();
  // Kindred: the same wire, configuration and UCX release, else why not.
  absl::Status CheckKindred(const Published& published) const;
  absl::Status ConnectTo(Peer& peer, const std::string& text);
  std::string UcxVersion() const;
  std::string Describe(const WorkerOptions& options) const;

  const runtime::Identity identity_;
  bool any_version_ = false;
  Nonce nonce_ = {};
  std::string configuration_;
  std::string interface_;  // for people
  std::unique_ptr<Worker> worker_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by world rank
  std::vector<Peer*> to_close_;
  size_t looking_up_ = 0;
  size_t pending_operations_ = 0;
  net::OwedReports<LinkState> reports_;
  LinkTable links_;
  std::chrono::steady_clock::time_point drain_end_;     // of the present series of drains
  std::chrono::steady_clock::time_point drains_until_;  // one that begins later begins a new series
  net::AddressBook book_;                               // last: its thread signals the worker
};

absl::Status UcxTransport::Init(const UcxOptions& options, std::string* description) {
  WorkerOptions worker_options;
  worker_options.library = options.library;
  worker_options.only_tcp = identity_.nodes_share_host;
  worker_options.expected_peers = static_cast<size_t>(std::max(1, identity_.world_size - identity_.local_world_size));
  worker_options.as_over_rdma = options.as_over_rdma;
  worker_options.port_range = options.port_range;
  worker_options.set_variables = options.set_variables;
  if (!identity_.data_interface_ip.empty()) {
    COHORT_ASSIGN_OR_RETURN(worker_options.interface, net::InterfaceOf(identity_.data_interface_ip));
  }
  worker_options.rdma_devices = net::RdmaDevicesOf(worker_options.interface);
  COHORT_ASSIGN_OR_RETURN(worker_, Worker::Create(worker_options, this));
  any_version_ = options.any_version;
  interface_ = worker_options.interface.empty() ? "all interfaces" : worker_options.interface;
  configuration_ = ConfigurationOf(worker_->limits());
  COHORT_ASSIGN_OR_RETURN(nonce_, net::MakeNonce());
  links_.set_released([this](LinkState& link) {
    link.Abandon();
    reports_.Remove(link);
  });
  if (description != nullptr) *description = Describe(worker_options);
  return book_.Publish(identity_.rank, ToText({UcxVersion(), configuration_, nonce_, worker_->address()}));
}

std::string UcxTransport::Describe(const WorkerOptions& options) const {
  std::string text = "UCX " + UcxVersion() + " on ";
  text += options.interface.empty() ? "all interfaces" : options.interface + " (" + identity_.data_interface_ip + ")";
  if (options.only_tcp) return text + ", TCP only: nodes share this host";
  if (options.rdma_devices.empty()) return text + ", TCP";
  text += ", RDMA by";
  for (const std::string& device : options.rdma_devices) text += " " + device;
  return text;
}

std::string UcxTransport::UcxVersion() const {
  return std::to_string(worker_->api().version_major) + "." + std::to_string(worker_->api().version_minor);
}

UcxTransport::~UcxTransport() {
  if (worker_ == nullptr) return;
  book_.Stop();  // its thread signals the worker
  links_.Clear();
  CloseFailed();
  for (auto& peer : peers_) {
    if (peer != nullptr && peer->endpoint != nullptr) worker_->Close(std::exchange(peer->endpoint, nullptr), false);
  }
  const runtime::Deadline deadline = runtime::Deadline::After(kCloseLimit);
  const auto settled = [this] {
    worker_->ReapClosed();
    return worker_->closing() == 0 && worker_->transfers().under_way() == 0 && worker_->Settled();
  };
  while (!settled()) {
    if (deadline.passed()) {
      worker_->Leave();
      break;
    }
    if (!worker_->Progress(kRoundsPerPoll)) worker_->Sleep(std::chrono::milliseconds(5));
  }
}

Peer* UcxTransport::FindPeer(int world_rank) {
  if (world_rank < 0 || world_rank >= identity_.world_size || world_rank == identity_.rank) return nullptr;
  std::unique_ptr<Peer>& peer = peers_[static_cast<size_t>(world_rank)];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>();
    peer->world_rank = world_rank;
    peer->keeper = this;
  }
  return peer.get();
}

SessionTerms UcxTransport::TermsOf(int from, int to, const Nonce& from_nonce, const Nonce& to_nonce) const {
  return {identity_.job_secret, identity_.job_id, identity_.epoch, from, to, from_nonce, to_nonce, configuration_};
}

absl::StatusOr<std::unique_ptr<Link>> UcxTransport::Connect(const LinkSpec& spec) {
  if (!Reaches(spec.peer_world_rank)) {
    return absl::InvalidArgumentError("rank " + std::to_string(spec.peer_world_rank) + " is not on another node");
  }
  COHORT_ASSIGN_OR_RETURN(LinkState* const link, links_.Connect(spec, *FindPeer(spec.peer_world_rank)));
  return std::make_unique<UcxLink>(&links_, link);
}

std::chrono::nanoseconds UcxTransport::DrainTime() {
  const auto now = std::chrono::steady_clock::now();
  if (now > drains_until_) drain_end_ = now + kDrainLimit;
  drains_until_ = std::max(now, drain_end_) + kBetweenDrains;
  return std::max<std::chrono::nanoseconds>(drain_end_ - now, kShortestDrain);
}

// Nothing is stored for a stranger: an entry is made once the proof is right.
void UcxTransport::OnHello(const void* data, size_t bytes) {
  Hello hello;
  if (data == nullptr || bytes != sizeof hello) return;
  std::memcpy(&hello, data, sizeof hello);
  if (hello.from < 0 || !Reaches(hello.from)) return;
  const SessionTerms terms = TermsOf(hello.from, identity_.rank, hello.nonce, nonce_);
  if (!HelloIsRight(hello, terms)) return;
  Peer* peer = FindPeer(hello.from);
  // A process says hello once; one that comes again was recorded, or is of a process that has replaced a lost one.
  if (peer == nullptr || peer->proved || peer->state == PeerState::kFailed) return;
  const absl::StatusOr<SessionKey> key = MakeSessionKey(terms);
  if (!key.ok()) return;
  peer->receive_key = *key;
  peer->proved = true;
}

bool UcxTransport::OnMessage(const void* header, size_t header_bytes, void* data, size_t bytes, bool rendezvous) {
  ParsedHeader message;
  if (!ParseHeader(header, header_bytes, worker_->limits(), &message).ok()) return false;
  if (message.header.from >= identity_.world_size) return false;
  Peer* peer = peers_[static_cast<size_t>(message.header.from)].get();
  if (peer == nullptr || !peer->proved || TagOf(peer->receive_key, message.header) != message.header.tag) return false;
  // From here on the sender is the rank that it says it is.
  if (peer->state == PeerState::kFailed) return false;
  const bool credit = (message.header.flags & kCreditOnly) != 0;
  if (!credit && (bytes != message.header.piece_bytes || (!rendezvous && bytes > worker_->limits().eager_bytes)))
    return false;
  const net::LinkKey key = {message.header.group, message.header.epoch, message.header.lane, message.header.from};
  LinkState* link = links_.FindFor(key, *peer);
  if (link == nullptr) {
    if (credit || links_.Ended(key)) return false;
    const absl::StatusOr<LinkState*> made = links_.MakeUnclaimed(key, *peer);
    if (!made.ok()) {
      FailPeer(*peer, made.status());
      return false;
    }
    link = *made;
  }
  return link->OnMessage(message, data, rendezvous);
}

bool UcxTransport::Poll() {
  bool moved = worker_->Progress(kRoundsPerPoll);
  if (looking_up_ > 0) moved |= TakeAnswers();
  if (!to_close_.empty()) {
    CloseFailed();
    moved = true;
  }
  moved |= reports_.Send();
  if (worker_->closing() > 0) worker_->ReapClosed();
  return moved;
}

bool UcxTransport::Active() const {
  return pending_operations_ > 0 || looking_up_ > 0 || worker_->transfers().under_way() > 0 || !reports_.empty() ||
         !to_close_.empty() || worker_->closing() > 0;
}

void UcxTransport::WantConnection(Peer& peer) {
  if (peer.state != PeerState::kUnknown) return;
  peer.state = PeerState::kLookingUp;
  ++looking_up_;
  book_.LookUp(peer.world_rank);
}

bool UcxTransport::TakeAnswers() {
  std::vector<net::AddressBook::Answer> answers = book_.Take();
  for (net::AddressBook::Answer& answer : answers) {
    Peer& peer = *peers_[static_cast<size_t>(answer.world_rank)];
    if (peer.state != PeerState::kLookingUp) continue;
    --looking_up_;
    peer.state = PeerState::kUnknown;
    const std::string rank = "rank " + std::to_string(peer.world_rank);
    if (!answer.value.ok()) {
      FailPeer(peer, absl::UnavailableError("the address of " + rank +
                                            " can't be had: " + std::string(answer.value.status().message())));
      continue;
    }
    const absl::Status connected = ConnectTo(peer, *answer.value);
    if (!connected.ok()) {
      FailPeer(peer, absl::Status(connected.code(), rank + " can't be talked to over " + interface_ + ": " +
                                                        std::string(connected.message())));
    }
  }
  return !answers.empty();
}

absl::Status UcxTransport::CheckKindred(const Published& published) const {
  if (published.configuration != configuration_) {
    return absl::FailedPreconditionError(
        "it moves messages as " + published.configuration + ", this rank as " + configuration_ +
        ": all hosts need the same kind of network (RDMA devices on all of them or on none) and the same build");
  }
  if (published.ucx_version != UcxVersion() && !any_version_) {
    return absl::FailedPreconditionError("it uses UCX " + published.ucx_version + ", this rank " + UcxVersion() +
                                         ", and releases may not understand each other: install the same, or set "
                                         "COHORT_UCX_ANY_VERSION=1 to try");
  }
  return absl::OkStatus();
}

absl::Status UcxTransport::ConnectTo(Peer& peer, const std::string& text) {
  absl::StatusOr<Published> published = ParsePublished(text);
  if (!published.ok()) return absl::FailedPreconditionError(std::string(published.status().message()));
  COHORT_RETURN_IF_ERROR(CheckKindred(*published));
  const SessionTerms terms = TermsOf(identity_.rank, peer.world_rank, nonce_, published->nonce);
  COHORT_ASSIGN_OR_RETURN(const Hello hello, MakeHello(terms));
  COHORT_ASSIGN_OR_RETURN(peer.send_key, MakeSessionKey(terms));
  peer.error_handler.argument = &peer;
  peer.error_handler.call = [](void* argument, const UcpApi& used, ucs_status_t status) {
    auto* lost = static_cast<Peer*>(argument);
    const std::string text = "lost the connection to rank " + std::to_string(lost->world_rank);
    lost->keeper->FailPeer(*lost, ToStatus(used, status, text));
  };
  COHORT_ASSIGN_OR_RETURN(peer.endpoint, worker_->Connect(published->address, &peer.error_handler));
  Transfer* transfer = worker_->transfers().New();
  transfer->hello = hello;
  const ucs_status_t sent = worker_->SendHello(peer.endpoint, transfer);
  if (sent != UCS_OK && sent != UCS_INPROGRESS) return ToStatus(worker_->api(), sent, "greeting it");
  peer.state = PeerState::kConnected;
  return absl::OkStatus();
}

void UcxTransport::FailPeer(Peer& peer, const absl::Status& status) {
  if (peer.state == PeerState::kFailed) return;
  if (peer.state == PeerState::kLookingUp) {
    --looking_up_;
    book_.Forget(peer.world_rank);
  }
  peer.state = PeerState::kFailed;
  peer.status = status;
  peer.failed_at = std::chrono::steady_clock::now();
  if (peer.endpoint != nullptr) to_close_.push_back(&peer);
}

void UcxTransport::CloseFailed() {
  for (Peer* peer : std::exchange(to_close_, {})) {
    if (peer->endpoint != nullptr) worker_->Close(std::exchange(peer->endpoint, nullptr), /*force=*/true);
  }
}

void UcxTransport::OnPeerLost(int world_rank, const absl::Status& status) {
  if (Peer* peer = FindPeer(world_rank); peer != nullptr) FailPeer(*peer, status);
}

}  // namespace
}  // namespace ucx

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const runtime::Identity& identity,
                                                            runtime::KeyValueStore* store, const UcxOptions& options,
                                                            std::string* description) {
  auto transport = std::make_unique<ucx::UcxTransport>(identity, store);
  COHORT_RETURN_IF_ERROR(transport->Init(options, description));
  return transport;
}

}  // namespace cohort::comm
