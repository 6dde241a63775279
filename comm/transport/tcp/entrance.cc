#include "cohort/comm/transport/tcp/entrance.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::tcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kAcceptsPerPoll = 32;
// Connections on which nobody has greeted. A rank whose connection is closed for one of others connects again.
constexpr size_t kMostStrangers = 256;
// How long the oldest of them may keep its place while others queue in the kernel. Without it, a thousand ranks that
// connect at once push each other out for ever.
constexpr std::chrono::milliseconds kMayKeepPlace(100);
constexpr size_t kMostOfOneRank = 4;
// Hellos that are remembered. Each came from a rank of this job.
constexpr size_t kMostGreetedKept = 1 << 16;
// A rank says hello as soon as it is connected, unless it is busy; then it connects again.
constexpr std::chrono::seconds kHelloLimit(10);
constexpr std::chrono::seconds kConfirmLimit(120);
constexpr std::chrono::milliseconds kBetweenLooks(500);
// How long nothing is accepted when there are no descriptors.
constexpr std::chrono::milliseconds kNoDescriptorsPause(100);

bool HasGreeted(const HandshakeSocket& socket) { return socket.handshake().peer() >= 0; }

}  // namespace

absl::Status Entrance::Open(const std::string& ip, const std::string& port_range, int buffer_bytes) {
  COHORT_ASSIGN_OR_RETURN(listener_, Listen(ip, port_range, buffer_bytes));
  COHORT_ASSIGN_OR_RETURN(addresses_, AddressesOf(listener_.get()));
  if (watch_->Add(listener_.get(), listener_token_)) return absl::OkStatus();
  return absl::ResourceExhaustedError("the kernel has no memory to watch a socket");
}

void Entrance::OnSocket(uint64_t token) { ready_.push_back(token); }

Entrance::Sockets::iterator Entrance::OldestStranger() {
  return std::find_if(sockets_.begin(), sockets_.end(), [](const auto& socket) { return !HasGreeted(*socket); });
}

// Ends the oldest connection on which nobody has greeted.
bool Entrance::MakeRoom() {
  const auto oldest = OldestStranger();
  if (oldest == sockets_.end()) return false;
  sockets_.erase(oldest);
  return true;
}

bool Entrance::AcceptSome() {
  bool moved = false;
  full_ = false;
  auto strangers = static_cast<size_t>(
      std::count_if(sockets_.begin(), sockets_.end(), [](const auto& socket) { return !HasGreeted(*socket); }));
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    if (strangers >= kMostStrangers) {
      const Clock::time_point until = (*OldestStranger())->begun() + kMayKeepPlace;
      if (Clock::now() < until) {
        accept_from_ = until;
        full_ = true;
        return moved;
      }
    }
    int error = 0;
    runtime::FileDescriptor socket = AcceptFrom(listener_.get(), &error);
    if (!socket.valid()) {
      if (error == EAGAIN || error == EWOULDBLOCK) may_accept_ = false;
      if ((error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) && !MakeRoom()) {
        accept_from_ = Clock::now() + kNoDescriptorsPause;
        return moved;
      }
      if (!may_accept_) return moved;
      continue;  // that one was gone already
    }
    moved = true;
    // Only now: the place would be taken away for nothing where nobody queues.
    if (strangers >= kMostStrangers && MakeRoom()) --strangers;
    absl::StatusOr<Handshake> handshake = Handshake::Accept(*terms_);
    if (!handshake.ok() || !watch_->Add(socket.get(), next_token_)) continue;
    sockets_.push_back(std::make_unique<HandshakeSocket>(next_token_++, std::move(socket), *std::move(handshake),
                                                         HandshakeSocket::State::kTalking));
    ready_.push_back(sockets_.back()->token());
    ++strangers;
  }
  return moved;
}

void Entrance::EndLate() {
  const Clock::time_point now = Clock::now();
  if (now < look_for_late_at_) return;
  look_for_late_at_ = now + kBetweenLooks;
  sockets_.remove_if([now](const std::unique_ptr<HandshakeSocket>& socket) {
    return now - socket->begun() >= (HasGreeted(*socket) ? kConfirmLimit : kHelloLimit);
  });
}

// Whether this hello comes for the first time. A rank draws a nonce for each, so one that comes again was recorded by
// somebody, who may repeat it without end; its connections would push those of the true rank out.
bool Entrance::NoteHello(const HandshakeSocket& socket) {
  uint64_t beginning = 0;
  std::memcpy(&beginning, socket.handshake().peer_nonce().data(), sizeof beginning);
  if (!greeted_.insert(beginning).second) return false;
  greeted_order_.push_back(beginning);
  if (greeted_order_.size() > kMostGreetedKept) {
    greeted_.erase(greeted_order_.front());
    greeted_order_.pop_front();
  }
  return true;
}

// Hellos that were recorded and never came here look new. Of one rank the latest connections stay.
void Entrance::EndOthersOf(const HandshakeSocket& socket) {
  const auto same = [&](const auto& other) { return other->handshake().peer() == socket.handshake().peer(); };
  if (static_cast<size_t>(std::count_if(sockets_.begin(), sockets_.end(), same)) <= kMostOfOneRank) return;
  const auto oldest = std::find_if(sockets_.begin(), sockets_.end(), same);
  if (oldest->get() != &socket) sockets_.erase(oldest);
}

bool Entrance::Poll(const std::function<void(std::unique_ptr<HandshakeSocket>)>& proved) {
  bool moved = may_accept_ && Clock::now() >= accept_from_ && AcceptSome();
  if (!sockets_.empty()) EndLate();
  for (const uint64_t token : std::exchange(ready_, {})) {
    const auto found = std::find_if(sockets_.begin(), sockets_.end(),
                                    [token](const auto& socket) { return socket->token() == token; });
    if (found == sockets_.end()) continue;  // ended meanwhile
    moved = true;
    const bool was_stranger = !HasGreeted(**found);
    const HandshakeSocket::State state = (*found)->Advance();
    if (was_stranger && (state != HandshakeSocket::State::kTalking || HasGreeted(**found))) accept_from_ = {};
    if (was_stranger && HasGreeted(**found) && !NoteHello(**found)) {
      sockets_.erase(found);
      continue;
    }
    if (state == HandshakeSocket::State::kTalking) {
      if (HasGreeted(**found)) EndOthersOf(**found);
      continue;
    }
    std::unique_ptr<HandshakeSocket> taken = std::move(*found);
    sockets_.erase(found);
    if (state == HandshakeSocket::State::kProved) proved(std::move(taken));
  }
  return moved;
}

}  // namespace cohort::comm::tcp
