#include "cohort/comm/transport/tcp/dialer.h"

#include <algorithm>
#include <utility>

#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::tcp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLongestPause(250);
constexpr seconds kGiveUp(60);
constexpr seconds kGiveUpOptional(5);
// How long one of several addresses is tried: packets to a wrong one may vanish.
constexpr seconds kOneOfSeveral(2);

}  // namespace

void Dialer::Start(int rank, std::vector<std::string> addresses) {
  Call& call = calls_.emplace_back();
  call.rank = rank;
  call.addresses = std::move(addresses);
  call.again_at = Clock::now();
  call.give_up_at = call.again_at + (optional_ip_.empty() ? kGiveUp : kGiveUpOptional);
}

void Dialer::Stop(int rank) {
  for (Call& call : calls_) call.stopped = call.stopped || call.rank == rank;
}

void Dialer::OnSocket(uint64_t token) {
  for (Call& call : calls_) call.event = call.event || (call.socket != nullptr && call.socket->token() == token);
}

bool Dialer::AwaitsWelcome(int rank) const {
  return std::any_of(calls_.begin(), calls_.end(), [rank](const Call& call) {
    return call.rank == rank && !call.stopped && call.socket != nullptr &&
           call.socket->handshake().state() == Handshake::State::kExpectWelcome;
  });
}

absl::Status Dialer::Begin(Call& call) {
  COHORT_ASSIGN_OR_RETURN(const SocketAddress address, ParseAddress(call.addresses[call.next]));
  COHORT_ASSIGN_OR_RETURN(runtime::FileDescriptor socket, StartConnect(address, buffer_bytes_, optional_ip_));
  COHORT_ASSIGN_OR_RETURN(Handshake handshake, Handshake::Initiate(*terms_, call.rank));
  if (!watch_->Add(socket.get(), next_token_)) {
    return absl::ResourceExhaustedError("the kernel has no memory to watch a socket");
  }
  call.socket = std::make_unique<HandshakeSocket>(next_token_++, std::move(socket), std::move(handshake),
                                                  HandshakeSocket::State::kConnecting);
  call.event = true;
  return absl::OkStatus();
}

// `why` is a copy: the socket that had it goes.
absl::Status Dialer::Ended(Call& call, absl::Status why, bool refused) {
  const std::string address = call.addresses[call.next];
  call.socket.reset();
  call.refused += refused ? 1 : 0;
  const bool nobody = call.refused == call.addresses.size();
  if (++call.next == call.addresses.size()) {
    call.next = call.refused = 0;
    call.again_at = Clock::now() + call.pause;
    call.pause = std::min<Clock::duration>(2 * call.pause, kLongestPause);
  }
  if (!nobody && Clock::now() < call.give_up_at) return absl::OkStatus();
  return absl::UnavailableError(address + ": " + std::string(why.message()));
}

absl::Status Dialer::Advance(Call& call, const std::function<bool(int, HandshakeSocket&)>& proved, bool* moved) {
  if (call.socket == nullptr) {
    if (Clock::now() < call.again_at) return absl::OkStatus();
    *moved = true;
    if (const absl::Status begun = Begin(call); !begun.ok()) return Ended(call, begun, /*refused=*/false);
  }
  const bool others = call.addresses.size() > 1 || !optional_ip_.empty();
  const bool late = others && call.socket->state() == HandshakeSocket::State::kConnecting &&
                    Clock::now() - call.socket->begun() > kOneOfSeveral;
  if (late) return Ended(call, absl::DeadlineExceededError("no answer"), /*refused=*/false);
  if (!std::exchange(call.event, false)) return absl::OkStatus();
  *moved = true;
  const HandshakeSocket::State state = call.socket->Advance();
  if (state == HandshakeSocket::State::kEnded) return Ended(call, call.socket->status(), call.socket->refused());
  if (state == HandshakeSocket::State::kProved && !proved(call.rank, *call.socket) && !call.stopped) {
    return Ended(call, absl::UnavailableError("the connection was not used"), /*refused=*/false);
  }
  return absl::OkStatus();
}

bool Dialer::Poll(const std::function<bool(int rank, HandshakeSocket& socket)>& proved,
                  const std::function<void(int rank, const absl::Status& status)>& failed) {
  bool moved = false;
  for (Call& call : calls_) {
    if (call.stopped) continue;
    const absl::Status status = Advance(call, proved, &moved);
    if (status.ok()) continue;
    call.stopped = true;
    failed(call.rank, status);
  }
  calls_.remove_if([](const Call& call) { return call.stopped; });
  return moved;
}

}  // namespace cohort::comm::tcp
