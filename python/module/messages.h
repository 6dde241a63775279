// Messages with tags, from one rank or from any, over a communicator of their own.
//
// comm's channels keep order and know no tags: both sides know the plan. Programs of torch.distributed don't, so
// messages are matched here, on top of comm. In comm every channel would need a list of unexpected messages and a rule
// for memory that nobody asked for. A message is a header (tag, bytes, type) and then its payload, on the channel of
// the pair. The receiver takes headers in order, while somebody waits for one. A payload goes straight into the memory
// of the first receive with its tag. Where none was posted yet, it goes into memory of our own, from which it is copied
// later. Programs without tags pay 24 bytes a message, which travel in the flag's own cache line.
//
// Everything happens with engine ownership, the callbacks too: any thread may call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <source_location>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/engine/work.h"

namespace cohort::python {

class Messages {
 public:
  // `engine` outlives it. Nobody else uses `communicator`.
  Messages(runtime::Engine& engine, std::unique_ptr<comm::Communicator> communicator);
  // Receives that have no message yet fail with kCancelled. Without the GIL. In a process that was forked from this one
  // nothing happens, and messages are refused with kFailedPrecondition: the parent's threads may hold the engine.
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Options of a message.
  struct Options {
    std::chrono::nanoseconds timeout;
    std::source_location site;
  };
  // The Work is done when the message has been received, or buffered if it is small.
  runtime::Work Send(const comm::ConstBuffer& in, int peer, int64_t tag, const Options& options);
  // The next message with this tag from `peer`; from anyone where it is kAnyone. `source` becomes the sender when the
  // Work is done. kFailedPrecondition: the message has another number of bytes; it is gone then. A receive from one
  // peer that has no message in time fails the group. One from anyone waits as long as its caller does.
  static constexpr int kAnyone = -1;
  runtime::Work Receive(const comm::Buffer& out, int peer, int64_t tag, const Options& options,
                        std::shared_ptr<std::atomic<int>> source);

 private:
  struct Header {
    int64_t tag = 0;
    int64_t bytes = 0;
    int64_t dtype = 0;
  };
  class SendState;
  class ReceiveState;
  class Payload;
  class Inbox;

  static bool Wants(const ReceiveState& receive, int peer);
  bool Wanted(int peer) const;
  // Takes headers from `peer` as long as they are there and wanted.
  void TakeHeaders(int peer);
  void HeaderArrived(int peer);
  void StartPayload(int peer, std::unique_ptr<Payload> payload);
  void PayloadArrived(Payload* payload, const absl::Status& status);
  void Match(Payload& payload, ReceiveState* receive);
  void FailAll(const absl::Status& status);

  runtime::Engine& engine_;
  const runtime::ForkWatch forks_;
  std::vector<std::unique_ptr<Inbox>> inboxes_;   // by peer
  std::list<ReceiveState*> posted_;               // without a message, in order; a reference each
  std::list<std::unique_ptr<Payload>> payloads_;  // arriving, or waiting for a receive, in order of their headers
  bool closing_ = false;
  std::unique_ptr<comm::Communicator> communicator_;  // last: its end calls back
};

}  // namespace cohort::python
