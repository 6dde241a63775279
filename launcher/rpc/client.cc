#include "cohort/launcher/rpc/client.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "cohort/launcher/rpc/client_stream.h"
#include "cohort/launcher/rpc/grpc_settings.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

// gRPC tells only in words that a handshake failed.
bool IsHandshakeFailure(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kUnavailable) return false;
  const std::string text(status.message());
  return text.find("handshake failed") != std::string::npos || text.find("certificate") != std::string::npos;
}

// A server that does not accept our certificate ends the connection after our side of the handshake has succeeded.
bool IsClosedOnUs(const absl::Status& status) {
  const std::string text(status.message());
  return text.find("Socket closed") != std::string::npos || text.find("Connection reset") != std::string::npos;
}
constexpr int kMaxTimesClosedOnUs = 3;

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousClient>> RendezvousClient::Connect(
    const std::string& address, const TlsIdentity& identity, const v1::NodeOffer& offer, Callbacks callbacks,
    runtime::Deadline deadline, const std::function<bool()>& given_up, bool counts) {
  QuietGrpc();
  int times_closed = 0;
  for (std::chrono::nanoseconds pause = milliseconds(50);;
       pause = std::min<std::chrono::nanoseconds>(2 * pause, milliseconds(500))) {
    auto stream = std::make_shared<Stream>(address, identity, callbacks);
    const absl::Status status = stream->Open(offer, counts, deadline, given_up);
    if (status.ok()) return std::unique_ptr<RendezvousClient>(new RendezvousClient(std::move(stream)));
    const std::string cause = "could not join the rendezvous at " + address + ": " + std::string(status.message());
    if (IsHandshakeFailure(status)) {
      return absl::UnauthenticatedError(cause + " (is it another job's?)");
    }
    if (IsClosedOnUs(status) && ++times_closed == kMaxTimesClosedOnUs) {
      return absl::UnauthenticatedError(cause +
                                        " (the program that listens there does not accept this agent's certificate)");
    }
    // Only a listener that is not there yet is worth another try.
    if (status.code() != absl::StatusCode::kUnavailable || deadline.left() <= pause) {
      return absl::Status(status.code(), cause);
    }
    std::this_thread::sleep_for(pause);
    if (given_up && given_up()) return absl::AbortedError(cause + " (and is no longer asked to)");
  }
}

RendezvousClient::RendezvousClient(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
RendezvousClient::~RendezvousClient() { stream_->Shut(runtime::Deadline::Now()); }

absl::Status RendezvousClient::Send(const v1::FromAgent& message) { return stream_->Send(message); }
void RendezvousClient::Close(runtime::Deadline deadline) { stream_->Shut(deadline); }

}  // namespace cohort::launcher
