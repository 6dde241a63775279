// The inside of RendezvousClient: one stream, with its queue, its beats and its end.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/control/lease.h"
#include "cohort/launcher/rpc/client.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/v1/rendezvous.grpc.pb.h"

namespace cohort::launcher {

// gRPC keeps using it until OnDone, so it keeps itself alive until then. Its owner lets go after that, since a channel
// must not be destroyed by gRPC's own thread. If the end does not come in time, it is left alone for good.
class RendezvousClient::Stream : public grpc::ClientBidiReactor<v1::FromAgent, v1::ToAgent>,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::string address, const TlsIdentity& identity, Callbacks callbacks);
  ~Stream() override;

  // Dials once and sends the offer. Returns OK when the rendezvous has let us in, otherwise the attempt's error. With
  // `counts` beats carry the number of messages that have been taken. `given_up`, which may be empty, is called now and
  // then meanwhile; kAborted when it says so.
  absl::Status Open(const v1::NodeOffer& offer, bool counts, runtime::Deadline deadline,
                    const std::function<bool()>& given_up);
  absl::Status Send(const v1::FromAgent& message);
  // Ends the stream; afterwards no callback is called. With a grace, it writes queued messages and awaits the server's
  // end that long.
  void Shut(runtime::Deadline grace);

 private:
  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  void WriteNext() COHORT_REQUIRES(mutex_);
  void DropHold() COHORT_REQUIRES(mutex_);
  // Waits for OnDone after a cancellation. If it does not come, returns false, and *this lives on.
  bool AwaitEnd() COHORT_REQUIRES(mutex_);
  // Sends beats and notices silence, in its own thread.
  void Watch();
  absl::Status WhyEnded(const grpc::Status& status) const COHORT_REQUIRES(mutex_);

  const std::string address_;
  const std::unique_ptr<v1::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  v1::ToAgent incoming_;
  v1::NodeTable nodes_;    // until the assignment that it belongs to has come
  v1::FromAgent written_;  // while gRPC writes it: the next message, or all that waited

  // Held while a callback runs, so that Shut can wait for it to return.
  runtime::Mutex callback_mutex_;
  Callbacks callbacks_ COHORT_GUARDED_BY(callback_mutex_);

  mutable runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::deque<v1::FromAgent> outgoing_ COHORT_GUARDED_BY(mutex_);
  size_t queued_bytes_ COHORT_GUARDED_BY(mutex_) = 0;   // the written ones included
  size_t written_bytes_ COHORT_GUARDED_BY(mutex_) = 0;  // of them
  bool counts_ COHORT_GUARDED_BY(mutex_) = false;
  uint64_t taken_ COHORT_GUARDED_BY(mutex_) = 0;  // messages that count, those of streams before included
  bool writing_ COHORT_GUARDED_BY(mutex_) = false;
  bool leaving_ COHORT_GUARDED_BY(mutex_) = false;  // Shut: nothing more is queued
  bool held_ COHORT_GUARDED_BY(mutex_) = false;     // writes may be started from any thread
  bool let_in_ COHORT_GUARDED_BY(mutex_) = false;
  bool told_the_end_ COHORT_GUARDED_BY(mutex_) = false;  // a report or a refusal has come
  bool silent_ COHORT_GUARDED_BY(mutex_) = false;        // we ended the stream since nothing came
  bool abandoned_ COHORT_GUARDED_BY(mutex_) = false;     // the owner has let go before the end
  std::shared_ptr<Stream> self_ COHORT_GUARDED_BY(mutex_);
  std::optional<grpc::Status> ended_ COHORT_GUARDED_BY(mutex_);
  Lease lease_ COHORT_GUARDED_BY(mutex_){std::chrono::steady_clock::now()};
  std::chrono::steady_clock::time_point next_beat_ COHORT_GUARDED_BY(mutex_);
  std::thread watcher_;
};

}  // namespace cohort::launcher
