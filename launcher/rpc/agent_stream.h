// The server's side of one agent's stream. It knows the agent's certificate and keeps a bounded queue of messages to
// write. It passes on the messages of one read at a time: the next is read when all of them have been dealt with.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cohort/launcher/control/rendezvous.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class AgentStream : public grpc::ServerBidiReactor<v1::FromAgent, v1::ToAgent> {
 public:
  // Receives the events of streams. gRPC's threads call it; it must not block.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnEvent(Event event) = 0;
    // The stream will not be used by gRPC any more.
    virtual void OnStreamGone(ConnectionId id) = 0;
  };

  AgentStream(Owner* owner, ConnectionId id, grpc::CallbackServerContext* context);

  // Begins to read. Called once.
  void Start() { StartRead(&incoming_); }
  // One of the messages that were passed on has been dealt with; after the last it reads on. Any thread may call it.
  void OnDealtWith();
  // Queues a message. Any thread may call it.
  void Send(std::shared_ptr<const v1::ToAgent> message);
  // Ends the stream when everything queued has been written.
  void Close();
  // Ends it now.
  void Abort();

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Checks that the node's name in the certificate is the one in the offer. Fills in the address.
  grpc::Status Check(v1::NodeOffer* offer) const;
  static bool IsProper(const v1::AgentBatch& batch);
  // Gives the owner what has been read.
  void PassOn();
  // Ends the stream with `status`, once. The owner receives `reason` if the agent had joined.
  void End(const grpc::Status& status, const std::string& reason);
  void WriteNext() COHORT_REQUIRES(mutex_);

  Owner* const owner_;
  const ConnectionId id_;
  grpc::CallbackServerContext* const context_;
  const std::vector<std::string> certified_names_;
  v1::FromAgent incoming_;
  bool joined_ = false;  // only touched by reads, one at a time, and by End under the lock

  runtime::Mutex mutex_;
  std::deque<std::shared_ptr<const v1::ToAgent>> outgoing_ COHORT_GUARDED_BY(mutex_);
  size_t queued_bytes_ COHORT_GUARDED_BY(mutex_) = 0;
  int passed_on_ COHORT_GUARDED_BY(mutex_) = 0;  // of the last read, and not dealt with yet
  bool writing_ COHORT_GUARDED_BY(mutex_) = false;
  bool closing_ COHORT_GUARDED_BY(mutex_) = false;
  bool finished_ COHORT_GUARDED_BY(mutex_) = false;  // Finish has been called: nothing may be started
  bool gone_ COHORT_GUARDED_BY(mutex_) = false;      // gRPC is through with the stream, its context too
};

}  // namespace cohort::launcher
