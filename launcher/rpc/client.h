// An agent's side of the stream to the rendezvous.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/credentials.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// Sends and expects the beats itself: callers neither send them nor, without standbys, see them.
class RendezvousClient {
 public:
  // Both are called from a thread of gRPC, never at the same time, perhaps before Connect has returned, never after the
  // destructor has; they must not block and must not destroy or close the client.
  struct Callbacks {
    std::function<void(v1::ToAgent)> on_message;
    // Once at the most: the stream has ended, and why. Not called after Close() or the destructor. A stream that ends
    // after `report` or `refused` also ends here, with OK.
    std::function<void(absl::Status)> on_lost;
  };

  // Connects to `address` ("127.0.0.1:40123"), proves to be the agent of offer.node, checks that the other side is this
  // job's rendezvous, and sends the offer. Returns when the stream stands; the assignment comes by on_message. Blocks
  // until the deadline at most. kUnauthenticated: one side does not accept the other's certificate; kDeadlineExceeded
  // or kUnavailable: nobody answers there, with the last error. `given_up`, where there is one, is asked in this thread
  // before each try but the first; kAborted when it says so. With `counts`, where another host may take over, beats
  // tell how many messages have come; answers that tell the same of ours are passed to on_message.
  static absl::StatusOr<std::unique_ptr<RendezvousClient>> Connect(
      const std::string& address, const TlsIdentity& identity, const v1::NodeOffer& offer, Callbacks callbacks,
      runtime::Deadline deadline, const std::function<bool()>& given_up = {}, bool counts = false);
  // Ends the stream at once, within two seconds at most.
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  // Queues a message; order is kept. Any thread, never blocks. kUnavailable when the stream has ended,
  // kResourceExhausted when 64 MiB wait unsent, kInvalidArgument when the message is larger than the limit.
  absl::Status Send(const v1::FromAgent& message);

  // Writes what is queued, says goodbye to the server and waits for its end of the stream until the deadline, then ends
  // it. No callback comes afterwards.
  void Close(runtime::Deadline deadline);

 private:
  class Stream;
  explicit RendezvousClient(std::shared_ptr<Stream> stream);
  std::shared_ptr<Stream> stream_;  // gRPC may let go of it later than we
};

}  // namespace cohort::launcher
