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

// Sends and expects the beats itself. Callers do not send them, and see them only with standbys.
class RendezvousClient {
 public:
  // Both are called from a thread of gRPC, never at the same time. They may come before Connect has returned, but not
  // after the destructor has. They must not block and must not destroy or close the client.
  struct Callbacks {
    std::function<void(v1::ToAgent)> on_message;
    // Called at most once: the stream has ended, with the reason. Not called after Close() or the destructor. A stream
    // that ends after `report` or `refused` also ends here, with OK.
    std::function<void(absl::Status)> on_lost;
  };

  // Connects to `address` ("127.0.0.1:40123") and proves to be the agent of offer.node. Checks that the other side is
  // this job's rendezvous, and sends the offer. Returns when the stream stands; the assignment comes by on_message.
  // Blocks until the deadline at most.
  //
  // `given_up`, if set, is called in this thread before each try but the first. With `counts`, where another host may
  // take over, beats carry the number of messages that have come. Answers that carry our number are passed to
  // on_message.
  //
  // kUnauthenticated: one side does not accept the other's certificate. kDeadlineExceeded or kUnavailable: nobody
  // answers there, with the last error. kAborted: `given_up` says so.
  static absl::StatusOr<std::unique_ptr<RendezvousClient>> Connect(
      const std::string& address, const TlsIdentity& identity, const v1::NodeOffer& offer, Callbacks callbacks,
      runtime::Deadline deadline, const std::function<bool()>& given_up = {}, bool counts = false);
  // Ends the stream at once. Blocks for two seconds at most.
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  // Queues a message and keeps the order. Any thread may call it; it never blocks. kUnavailable: the stream has ended.
  // kResourceExhausted: 64 MiB wait unsent. kInvalidArgument: the message is larger than the limit.
  absl::Status Send(const v1::FromAgent& message);

  // Writes queued messages, says goodbye to the server and waits for its end of the stream until the deadline. Then it
  // ends the stream. No callback comes afterwards.
  void Close(runtime::Deadline deadline);

 private:
  class Stream;
  explicit RendezvousClient(std::shared_ptr<Stream> stream);
  std::shared_ptr<Stream> stream_;  // gRPC may let go of it later than we
};

}  // namespace cohort::launcher
