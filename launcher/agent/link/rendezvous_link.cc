#include "cohort/launcher/agent/link/rendezvous_link.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/dial.h"
#include "cohort/launcher/base/net/free_port.h"
#include "cohort/launcher/base/net/own_addresses.h"
#include "cohort/launcher/control/lease.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
// How often an agent that could not join looks whether another hosts the rendezvous by now.
constexpr std::chrono::milliseconds kLookForMove{50};
// How long one attempt at a next host's addresses takes.
constexpr std::chrono::milliseconds kAttempt{1000};
constexpr std::chrono::seconds kJoinLimit{40};
constexpr uint64_t kNoTerm = std::numeric_limits<uint64_t>::max();  // the link ends: no host is dialled any more

std::string OnInterface(const std::string& interface) {
  if (interface.empty()) return "; bring its network up";
  std::string all;
  for (const std::string& address : OwnAddresses()) all += (all.empty() ? "" : ", ") + address;
  return " on --iface " + interface + "; it has " + (all.empty() ? "none" : all);
}

absl::Status NoAddress(const v1::NodeStart& start) {
  return WithRemedy(Remedy::kNoAddress, absl::UnavailableError("this machine has no address that others may reach" +
                                                               OnInterface(start.interface())));
}

TlsIdentity IdentityOf(const v1::NodeStart& start) {
  return {start.ca_certificate(), start.certificate(), start.private_key()};
}

absl::StatusOr<RendezvousServer::Options> ServerOptions(const v1::NodeStart& start) {
  RendezvousServer::Options options;
  options.hosts = start.across_hosts() ? std::vector<std::string>() /* all */ : std::vector{LoopbackAddress()};
  if (start.across_hosts() && !start.interface().empty()) {
    options.hosts = OwnAddresses(start.interface());
    if (options.hosts.empty()) return NoAddress(start);
  }
  options.identity = IdentityOf(start);
  options.port = static_cast<int>(start.first_port());
  options.last_port = static_cast<int>(start.last_port());
  return options;
}

// The addresses at which others reach a server that listens at `address`.
absl::StatusOr<std::string> ServerAddresses(const v1::NodeStart& start, const std::string& address) {
  if (!start.across_hosts()) return address;
  std::string addresses = FormatAddresses(OwnAddresses(start.interface()), PortOf(address));
  if (!addresses.empty()) return addresses;
  return NoAddress(start);
}

// FirstReachable, which can be called away.
absl::StatusOr<std::string> FirstToAnswer(const std::string& addresses, Deadline deadline,
                                          const std::function<bool()>& called_away) {
  while (true) {
    const Deadline attempt = Deadline::After(std::min<std::chrono::nanoseconds>(deadline.left(), kAttempt));
    absl::StatusOr<std::string> address = FirstReachable(addresses, attempt);
    if (address.ok() || !attempt.passed() || deadline.passed() || called_away()) return address;
  }
}

// Takes what a hosted rendezvous says, on whatever thread that is, to the loop's as an event.
template <typename News>
auto PassOn(EventLoop* loop, const RendezvousLink::Handler* handle) {
  return [loop, handle](auto news) { loop->Post([handle, event = News{std::move(news)}] { (*handle)(event); }); };
}

using Client = absl::StatusOr<std::unique_ptr<RendezvousClient>>;
using Connect = std::function<Client(const std::string& address, Deadline deadline)>;

// Tries one address after the other, those first that accept connections. Where one does, that may be another machine
// of the same address, or another job: it is left out then; who only does not answer is tried again after the others.
Client ConnectToOneOf(std::string addresses, Deadline deadline, const std::function<bool()>& called_away,
                      const Connect& connect) {
  Client client = absl::UnavailableError("nobody was asked");
  std::string later;
  for (bool asked = false;; asked = true) {
    const absl::StatusOr<std::string> address = FirstToAnswer(addresses, deadline, called_away);
    if (!address.ok()) return asked ? std::move(client) : Client(address.status());
    const size_t count = CountAddresses(addresses);
    client = connect(*address, Deadline::After(deadline.left() / static_cast<int64_t>(count)));
    const bool stranger = absl::IsUnauthenticated(client.status());
    const bool silent = absl::IsUnavailable(client.status()) || absl::IsDeadlineExceeded(client.status());
    const bool last = count == 1 && later.empty();
    if (last || deadline.passed() || called_away() || !(stranger || silent)) return client;
    if (silent) later += (later.empty() ? "" : ",") + *address;
    addresses = WithoutAddress(addresses, *address);
    if (addresses.empty()) addresses = std::exchange(later, "");
  }
}

}  // namespace

RendezvousLink::~RendezvousLink() {
  term_ = kNoTerm;
  if (mover_.joinable()) mover_.join();
}

void RendezvousLink::Finish(LinkLife life) {
  life_.Enter(life);
  loop_->Cancel(std::exchange(wait_timer_, 0));
}

void RendezvousLink::Begin(const v1::NodeStart& start) {
  start_ = start;
  succession_ = Succession::Of(start);
}

absl::StatusOr<std::string> RendezvousLink::Host(const v1::NodeStart& start) {
  Begin(start);
  if (start_.certificate().empty()) {
    COHORT_ASSIGN_OR_RETURN(auto own, OwnRendezvous::Create(loop_, start_.plan(), PassOn<News>(loop_, &handle_),
                                                            PassOn<Finished>(loop_, &handle_)));
    own_ = own.get();
    server_ = std::move(own);
    return kInProcess;
  }
  COHORT_ASSIGN_OR_RETURN(RendezvousServer::Options options, ServerOptions(start_));
  options.on_news = PassOn<News>(loop_, &handle_);
  COHORT_ASSIGN_OR_RETURN(auto server,
                          RendezvousServer::Start(start.plan(), std::move(options), PassOn<Finished>(loop_, &handle_)));
  const std::string address = server->address();
  server_ = std::move(server);
  return ServerAddresses(start_, address);
}

absl::StatusOr<std::string> RendezvousLink::TakeOver(const v1::TakeOver& order) {
  const std::unique_ptr<StandbyCopy> copy = succession_->TakeCopy();
  if (copy == nullptr) return absl::FailedPreconditionError("it has no copy of the rendezvous");
  COHORT_ASSIGN_OR_RETURN(RendezvousServer::Options options, ServerOptions(start_));
  options.on_news = PassOn<News>(loop_, &handle_);
  COHORT_ASSIGN_OR_RETURN(auto server, RendezvousServer::TakeOver(std::move(*copy), order, std::move(options),
                                                                  PassOn<Finished>(loop_, &handle_)));
  const std::string address = server->address();
  server_ = std::move(server);
  return ServerAddresses(start_, address);
}

absl::Status RendezvousLink::Join(const v1::NodeStart& start, const std::string& addresses,
                                  const std::function<bool()>& given_up) {
  Begin(start);
  life_.Enter(own_ != nullptr ? LinkLife::kJoined : LinkLife::kJoining);
  if (own_ != nullptr) {
    data_interface_ip_ = LoopbackAddress();
    own_->Join(MakeOffer(), {.on_message = [this](const v1::ToAgent& message) { OnMessage(stream_, message); },
                             .on_lost = [this](const absl::Status& why) { OnStreamEnded(stream_, why); }});
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<RendezvousClient>> client = JoinFirstHost(addresses, given_up);
  const bool hopeless = absl::IsInvalidArgument(client.status());
  const Deadline move = Deadline::After(hopeless ? std::chrono::milliseconds(0) : succession_->next_host_within());
  while (!client.ok() && term_ == 1 && !move.passed() && !(given_up && given_up()))
    std::this_thread::sleep_for(kLookForMove);
  const bool moved = term_ > 1;
  if (!moved && !client.ok()) {
    life_.Enter(LinkLife::kLost);
    ++stream_;
    return client.status();
  }
  BeginStream(client.ok() ? *std::move(client) : nullptr);
  if (!moved) return absl::OkStatus();
  Leave();
  LeaveHost();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<RendezvousClient>> RendezvousLink::JoinFirstHost(const std::string& addresses,
                                                                                const std::function<bool()>& given_up) {
  if (!start_.interface().empty()) {
    const std::vector<std::string> own = OwnAddresses(start_.interface());
    if (own.empty()) {
      return InvalidArgumentError(Remedy::kNoInterface,
                                  "this machine has no address" + OnInterface(start_.interface()));
    }
    data_interface_ip_ = own[0];
  } else {
    data_interface_ip_ = LocalAddressTowards(addresses.substr(0, addresses.find(',')));
  }
  const auto called_away = [this, &given_up] { return (given_up && given_up()) || term_ > 1; };
  return ConnectToOneOf(addresses, Deadline::After(kJoinLimit), called_away,
                        [&](const std::string& address, Deadline deadline) {
                          if (start_.interface().empty()) data_interface_ip_ = LocalAddressTowards(address);
                          return RendezvousClient::Connect(address, IdentityOf(start_), MakeOffer(), StreamCallbacks(),
                                                           deadline, called_away, succession_->has_next_host());
                        });
}

v1::NodeOffer RendezvousLink::MakeOffer() const {
  v1::NodeOffer offer;
  offer.set_protocol(kRendezvousProtocol);
  offer.set_node(start_.node());
  offer.set_name(start_.name());
  offer.set_address(data_interface_ip_);
  offer.set_master_port(FreeMasterPort(start_));
  return offer;
}

RendezvousClient::Callbacks RendezvousLink::StreamCallbacks() {
  RendezvousClient::Callbacks callbacks;
  callbacks.on_message = [this, stream = stream_](v1::ToAgent message) {
    if (message.has_log()) return succession_->OnPage(message.log());
    loop_->Post([this, stream, message = std::move(message)] { OnMessage(stream, message); });
  };
  callbacks.on_lost = [this, stream = stream_](absl::Status why) {
    loop_->Post([this, stream, why = std::move(why)] { OnStreamEnded(stream, why); });
  };
  return callbacks;
}

void RendezvousLink::BeginStream(std::shared_ptr<RendezvousClient> client) {
  life_.Enter(client != nullptr ? LinkLife::kJoined : LinkLife::kWaiting);
  client_ = std::move(client);
  succession_->AcknowledgeTo(client_.get());
  for (const auto& [stream, message] : std::exchange(early_, {})) OnMessage(stream, message);
  if (const auto end = std::exchange(early_end_, std::nullopt)) OnStreamEnded(end->first, end->second);
}

void RendezvousLink::OnMessage(uint64_t stream, const v1::ToAgent& message) {
  if (life_ == LinkLife::kLost) return;
  if (life_ == LinkLife::kJoining || life_ == LinkLife::kDialling) return early_.push_back({stream, message});
  for (const v1::FromAgent& again : succession_->Hear(message)) Write(again);
  // The welcome of a host that was left since is none: ranks may not run for longer because of it.
  if (message.has_resumed() && stream == stream_) loop_->Cancel(std::exchange(wait_timer_, 0));
  if (message.has_beat() || message.has_resumed()) return;
  if (!message.has_assignment()) return handle_(Message{&message});
  v1::ToAgent whole = message;
  v1::Assignment& assignment = *whole.mutable_assignment();
  if (assignment.same_nodes()) {
    *assignment.mutable_nodes() = nodes_.nodes();
  } else {
    *nodes_.mutable_nodes() = assignment.nodes();
  }
  handle_(Message{&whole});
}

void RendezvousLink::OnStreamEnded(uint64_t stream, const absl::Status& why) {
  if (stream != stream_) return;
  if (life_ == LinkLife::kJoining || life_ == LinkLife::kDialling) {
    early_end_ = {stream, why};
    return;
  }
  if (!succession_->has_next_host() || why.ok()) {
    Finish(LinkLife::kDone);
    return handle_(Lost{why});
  }
  if (life_ == LinkLife::kJoined) life_.Enter(LinkLife::kWaiting);
  succession_->Leave();
  if (standing_by()) handle_(HostSilent{term_});
  WaitForHost(why);
}

void RendezvousLink::WaitForHost(const absl::Status& why) {
  if (wait_timer_ != 0) return;
  wait_timer_ = loop_->After(succession_->next_host_within(), [this, why] {
    wait_timer_ = 0;
    life_.Enter(LinkLife::kLost);
    ++stream_;
    handle_(Lost{WithRemedyOf(
        why, absl::Status(why.code(), std::string(why.message()) + ", and no other has taken over in 8 s"))});
  });
}

void RendezvousLink::MoveTo(const v1::NewHost& host) {
  if (host.term() <= term_ || !succession_->has_next_host() || life_ == LinkLife::kLost) return;
  term_ = host.term();
  next_host_ = host;
  ++stream_;
  if (life_ == LinkLife::kApart || life_ == LinkLife::kJoining) return;  // Join goes on from there
  Leave();
  if (life_ != LinkLife::kLeaving && life_ != LinkLife::kDialling) LeaveHost();
}

void RendezvousLink::Leave() {
  succession_->Leave();
  WaitForHost(absl::UnavailableError("the rendezvous moved to " + next_host_.addresses()));
}

// Ends the stream, and our own server if another is the host now, in a thread: both may take their time.
void RendezvousLink::LeaveHost() {
  life_.Enter(LinkLife::kLeaving);
  succession_->AcknowledgeTo(nullptr);
  std::shared_ptr<HostedRendezvous> server;
  if (next_host_.agent() != start_.node()) server = std::move(server_);
  std::shared_ptr<RendezvousClient> client = std::move(client_);
  if (mover_.joinable()) mover_.join();
  mover_ = std::thread([this, server = std::move(server), client = std::move(client)]() mutable {
    client.reset();
    server.reset();
    loop_->Post([this] { GoToHost(); });  // after all that the old stream has brought
  });
}

void RendezvousLink::GoToHost() {
  if (life_ == LinkLife::kLost) return;
  mover_.join();
  Leave();  // what the old stream has brought last may have been its own welcome
  v1::NodeOffer offer = MakeOffer();
  succession_->Resume(&offer);
  life_.Enter(LinkLife::kDialling);
  mover_ = std::thread([this, stream = stream_, term = term_.load(), offer = std::move(offer),
                        identity = IdentityOf(start_), addresses = next_host_.addresses(),
                        callbacks = StreamCallbacks()] {
    const auto called_away = [this, term] { return term_ != term; };
    const Deadline deadline = Deadline::After(kTakeOverTime);
    Client connected =
        ConnectToOneOf(addresses, deadline, called_away, [&](const std::string& address, Deadline until) {
          return RendezvousClient::Connect(address, identity, offer, callbacks, until, called_away, /*counts=*/true);
        });
    std::shared_ptr<RendezvousClient> client;
    if (connected.ok()) client = *std::move(connected);
    loop_->Post([this, stream, client] { OnMoved(stream, client); });
  });
}

void RendezvousLink::OnMoved(uint64_t stream, const std::shared_ptr<RendezvousClient>& client) {
  if (life_ == LinkLife::kLost) return;
  BeginStream(client);
  if (stream != stream_) LeaveHost();  // it has moved on meanwhile
}

void RendezvousLink::Send(const v1::FromAgent& message) {
  if (succession_->Say(message)) Write(message);
}

void RendezvousLink::Write(const v1::FromAgent& message) {
  if (own_ != nullptr) return own_->Send(message);
  if (!client_) return;
  const absl::Status sent = client_->Send(message);
  if (sent.ok() || absl::IsUnavailable(sent)) return;
  ++stream_;  // a message is lost: the rendezvous might wait for it for ever, or count wrongly what follows
  if (life_ == LinkLife::kJoined) Finish(LinkLife::kDone);
  loop_->Post([this, sent] { handle_(Lost{sent}); });
}

void RendezvousLink::Abandon() {
  if (life_ == LinkLife::kLost) return;
  Finish(LinkLife::kLost);
  ++stream_;
  succession_->AcknowledgeTo(nullptr);
  client_.reset();
}

void RendezvousLink::Close() {
  term_ = kNoTerm;
  if (mover_.joinable()) mover_.join();
  if (client_) client_->Close(Deadline::After(std::chrono::seconds(1)));
}

uint32_t FreeMasterPort(const v1::NodeStart& start) {
  return static_cast<uint32_t>(FindFreePort(start.first_port(), start.last_port()));
}

std::string WhyNoMasterPort(const v1::NodeStart& start) {
  const std::string range = std::to_string(start.first_port()) + ":" + std::to_string(start.last_port());
  return WithRemedy(
      Remedy::kMasterPort,
      "no port is free for MASTER_PORT" +
          (start.first_port() == 0 ? "; too many are in use" : " in --port-range " + range + "; give a wider one"));
}

}  // namespace cohort::launcher
