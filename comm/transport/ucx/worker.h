// One UCX context and worker: configuration, progress, sleep, endpoints and the single operations on them. Knows
// nothing of links.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/ucx/transfers.h"
#include "cohort/comm/transport/ucx/ucp_api.h"
#include "cohort/comm/transport/ucx/wire.h"

namespace cohort::comm::ucx {

// "Endpoint timeout" and so on, as a status about a peer.
absl::Status ToStatus(const UcpApi& api, ucs_status_t status, const std::string& doing);

// Receives messages. Called from within Worker::Progress; must not call Progress.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  // `data` is the payload when !rendezvous, else a descriptor for Worker::Receive. Returns true when the sink keeps the
  // descriptor (rendezvous only) and will hand it to Receive or Discard.
  virtual bool OnMessage(const void* header, size_t header_bytes, void* data, size_t bytes, bool rendezvous) = 0;
  virtual void OnHello(const void* hello, size_t bytes) = 0;
};

struct WorkerOptions {
  std::string library;                     // COHORT_UCX_LIBRARY
  std::string interface;                   // network interface; empty: all of them
  std::vector<std::string> rdma_devices;   // as UCX names them ("mlx5_0:1"): those behind the interface
  bool only_tcp = false;                   // nodes share a host: their traffic must not go through UCX's shared memory
  bool as_over_rdma = false;               // limits as on RDMA devices
  std::string port_range;                  // "20000-20100" to listen in; empty: any port
  std::vector<std::string> set_variables;  // UCX_... that the user has set: they stay as they are
  size_t expected_peers = 1;
};

class Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const WorkerOptions& options, MessageSink* sink);
  // All endpoints must have been closed.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const UcpApi& api() const { return api_; }
  const std::string& address() const { return address_; }
  const WireLimits& limits() const { return limits_; }
  // Bytes that one connection absorbs in one direction while the peer reads nothing.
  uint64_t socket_bytes() const { return socket_bytes_; }

  // Up to `rounds` rounds of ucp_worker_progress; true when anything happened.
  bool Progress(int rounds);
  // See runtime::ProgressSource::Arm.
  int Arm(bool* ready);
  // Sleeps until there is something to progress, for `limit` at most.
  void Sleep(std::chrono::milliseconds limit);
  // Makes a sleeping owner look again. Any thread.
  void Signal();

  // `call` is made from within Progress when the peer is gone. The handler must outlive the endpoint.
  struct ErrorHandler {
    void (*call)(void* argument, const UcpApi& api, ucs_status_t status) = nullptr;
    void* argument = nullptr;
    const UcpApi* api = nullptr;  // set by Connect
  };
  absl::StatusOr<ucp_ep_h> Connect(const std::string& address, ErrorHandler* handler);
  // Starts closing; `force` abandons what is queued. Finished when Closing() is 0.
  void Close(ucp_ep_h endpoint, bool force);
  size_t closing() const { return closing_.size(); }
  // Drops the finished ones from closing().
  void ReapClosed();
  // Whether nothing is queued any more, not even what UCX sends by itself: its half of a connection that a peer has
  // begun. Call it again after Progress until it says so; then destroy the worker without another Progress: UCX 1.13
  // ends the process by an assertion when a worker goes that still has to greet a peer.
  bool Settled();
  // Leaves the worker to the end of the process instead of destroying it.
  void Leave();

  Transfers& transfers() { return transfers_; }
  // Sends `transfer->hello`; results as Send.
  ucs_status_t SendHello(ucp_ep_h endpoint, Transfer* transfer);
  // Sends wire.header (and the record when flagged) and `data`. Returns UCS_OK when it was finished at once (`done` is
  // not called, the transfer is reused), UCS_INPROGRESS (`done` will be called), or an error (as UCS_OK).
  ucs_status_t Send(ucp_ep_h endpoint, Transfer* transfer, const void* data, size_t bytes);
  // Moves an announced piece to `data`. Results as Send.
  ucs_status_t Receive(Transfer* transfer, void* descriptor, void* data, size_t bytes);
  // Gives up an announced piece; its sender takes it for delivered.
  void Discard(void* descriptor);

 private:
  Worker(const UcpApi& api, MessageSink* sink) : api_(api), sink_(sink) {}
  absl::Status Init(const WorkerOptions& options);
  absl::Status Configure(const WorkerOptions& options, ucp_config_t* config);
  absl::Status MakeContext(const WorkerOptions& options);
  // UCX calls the sink with messages of this number.
  absl::Status SetHandler(unsigned id, ucp_am_recv_callback_t callback);

  const UcpApi& api_;
  MessageSink* const sink_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  std::string address_;
  WireLimits limits_ = kStreamLimits;
  uint64_t socket_bytes_ = 0;
  std::vector<void*> closing_;
  void* flush_ = nullptr;  // of Settled()
  Transfers transfers_{api_};
};

}  // namespace cohort::comm::ucx
