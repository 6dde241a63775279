#include "cohort/comm/transport/ucx/worker.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::ucx {
namespace {

// Active messages' numbers.
constexpr unsigned kMessageId = 7;
constexpr unsigned kHelloId = 8;

// For UCX's and our headers around a piece in a segment.
constexpr uint64_t kSegmentMargin = 4 << 10;
// Socket buffer of each connection, in each direction. It fills 100 Gbit/s at 0.3 ms, and on loopback is 1.2 times as
// fast as what the kernel grows to by itself.
constexpr uint64_t kSocketBuffer = 4 << 20;

// Bytes that any other socket takes before its receiver has read anything: Linux offers 64 KiB at first.
constexpr uint64_t kSmallSocket = 64 << 10;

// Whether the kernel would grant it. A smaller grant would be worse than the kernel's own growing buffers.
bool SocketBuffersMayBe(uint64_t bytes) {
  for (const char* path : {"/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max"}) {
    std::ifstream file(path);
    uint64_t limit = 0;
    if (!(file >> limit) || limit < bytes) return false;
  }
  return true;
}

// UCX aborts the process where it lacks some of its own, and its listener closes for good at the limit: of the usual
// 1024 a thousand connections of strangers leave none.
absl::Status TakeDescriptors() {
  constexpr rlim_t kLeast = 64;
  constexpr rlim_t kEnough = 64 << 10;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return absl::OkStatus();
  const rlimit raised{.rlim_cur = std::min(kEnough, limit.rlim_max), .rlim_max = limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  if (limit.rlim_cur >= kLeast) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      "UCX and its connections need more than the " + std::to_string(limit.rlim_cur) +
      " descriptors that a process may have here; raise the limit, with ulimit -n 1024");
}

absl::Status SetOption(const UcpApi& api, ucp_config_t* config, const char* name, const std::string& value) {
  const ucs_status_t status = api.ucp_config_modify(config, name, value.c_str());
  if (status == UCS_OK) return absl::OkStatus();
  return absl::InternalError("UCX " + std::to_string(api.version_major) + "." + std::to_string(api.version_minor) +
                             " refused " + name + "=" + value + ": " + api.ucs_status_string(status));
}

// UCX's callbacks for messages that arrive; `sink` is a MessageSink.
ucs_status_t OnHello(void* sink, const void* header, size_t header_bytes, void*, size_t, const ucp_am_recv_param_t*) {
  static_cast<MessageSink*>(sink)->OnHello(header, header_bytes);
  return UCS_OK;
}

ucs_status_t OnMessage(void* sink, const void* header, size_t header_bytes, void* data, size_t bytes,
                       const ucp_am_recv_param_t* parameters) {
  const bool rendezvous = (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const bool kept = static_cast<MessageSink*>(sink)->OnMessage(header, header_bytes, data, bytes, rendezvous);
  return kept ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace

absl::Status ToStatus(const UcpApi& api, ucs_status_t status, const std::string& doing) {
  return absl::UnavailableError(doing + ": " + api.ucs_status_string(status) + " (UCX)");
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const WorkerOptions& options, MessageSink* sink) {
  COHORT_ASSIGN_OR_RETURN(const UcpApi* api, LoadUcp(options.library));
  std::unique_ptr<Worker> worker(new Worker(*api, sink));
  COHORT_RETURN_IF_ERROR(worker->Init(options));
  return worker;
}

absl::Status Worker::Configure(const WorkerOptions& options, ucp_config_t* config) {
  // We choose the carrier of the data. Never shared memory: inside a host our own transport is used, and UCX's
  // would not see a peer's death.
  const bool rdma = !options.only_tcp && !options.rdma_devices.empty();
  COHORT_RETURN_IF_ERROR(SetOption(api_, config, "TLS", rdma ? "^shm,self" : "tcp"));
  if (!options.interface.empty()) {
    std::string devices = options.interface;
    for (const std::string& device : options.rdma_devices) devices += rdma ? "," + device : "";
    COHORT_RETURN_IF_ERROR(SetOption(api_, config, "NET_DEVICES", devices));
  }
  limits_ = rdma || options.as_over_rdma ? kRdmaLimits : kStreamLimits;
  // Up to 1.13 a transport's options are named without the transport.
  const bool bare_names = api_.version_major == 1 && api_.version_minor <= 13;
  const auto is_set = [&set = options.set_variables](const std::string& variable) {
    return std::find(set.begin(), set.end(), variable) != set.end();
  };
  const auto suggest = [&](const std::string& name, const std::string& value) {
    if (is_set("UCX_TCP_" + name)) return absl::OkStatus();
    return SetOption(api_, config, ((bare_names ? "" : "TCP_") + name).c_str(), value);
  };
  // From the user's memory in one call: releases after 1.13 would copy 8 KiB at a time, 128 KiB in 69 us for 28.
  if (!rdma && !is_set("UCX_ZCOPY_THRESH")) COHORT_RETURN_IF_ERROR(SetOption(api_, config, "ZCOPY_THRESH", "8k"));
  // TCP's remote writes let a peer that connects name an address of this process to write to. Nothing here needs them.
  COHORT_RETURN_IF_ERROR(suggest("PUT_ENABLE", "n"));
  // A silent host is noticed on an idle connection: after 10 s, three probes 2 s apart.
  COHORT_RETURN_IF_ERROR(suggest("KEEPIDLE", "10s"));
  COHORT_RETURN_IF_ERROR(suggest("KEEPINTVL", "2s"));
  COHORT_RETURN_IF_ERROR(suggest("KEEPCNT", "3"));
  if (!options.port_range.empty()) COHORT_RETURN_IF_ERROR(suggest("PORT_RANGE", options.port_range));
  // One piece and its headers: read by one call, never moved.
  COHORT_RETURN_IF_ERROR(suggest("RX_SEG_SIZE", std::to_string(kStreamLimits.piece_bytes + kSegmentMargin)));
  const bool large = SocketBuffersMayBe(kSocketBuffer);
  const bool chosen = is_set("UCX_TCP_SNDBUF") || is_set("UCX_TCP_RCVBUF");
  socket_bytes_ = rdma || options.as_over_rdma ? ~uint64_t{0} : large && !chosen ? kSocketBuffer : kSmallSocket;
  if (large) {
    COHORT_RETURN_IF_ERROR(suggest("SNDBUF", std::to_string(kSocketBuffer)));
    COHORT_RETURN_IF_ERROR(suggest("RCVBUF", std::to_string(kSocketBuffer)));
  }
  return absl::OkStatus();
}

absl::Status Worker::MakeContext(const WorkerOptions& options) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = api_.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return ToStatus(api_, status, "reading UCX's configuration");
  absl::Status configured = Configure(options, config);
  if (configured.ok()) {
    ucp_params_t parameters = {};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
    parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    parameters.estimated_num_eps = options.expected_peers;
    parameters.name = "cohort";
    status = api_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &context_);
    if (status != UCS_OK) {
      configured = ToStatus(api_, status,
                            "UCX found nothing to work with on " +
                                (options.interface.empty() ? std::string("any interface") : options.interface));
    }
  }
  api_.ucp_config_release(config);
  return configured;
}

absl::Status Worker::SetHandler(unsigned id, ucp_am_recv_callback_t callback) {
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = id;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = callback;
  handler.arg = sink_;
  const ucs_status_t status = api_.ucp_worker_set_am_recv_handler(worker_, &handler);
  return status == UCS_OK ? absl::OkStatus() : ToStatus(api_, status, "registering with UCX for messages");
}

absl::Status Worker::Init(const WorkerOptions& options) {
  COHORT_RETURN_IF_ERROR(TakeDescriptors());
  COHORT_RETURN_IF_ERROR(MakeContext(options));
  ucp_worker_params_t parameters = {};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // the engine has one owner at a time
  ucs_status_t status = api_.ucp_worker_create(context_, &parameters, &worker_);
  if (status != UCS_OK) {
    return ToStatus(api_, status,
                    options.port_range.empty()
                        ? std::string("making a UCX worker")
                        : "making a UCX worker that listens on a port of COHORT_PORT_RANGE=" + options.port_range +
                              ", of which every rank of the host needs one");
  }
  status = api_.ucp_worker_get_efd(worker_, &descriptor_);
  if (status != UCS_OK) return ToStatus(api_, status, "asking UCX for a descriptor to sleep on");
  COHORT_RETURN_IF_ERROR(SetHandler(kMessageId, &OnMessage));
  COHORT_RETURN_IF_ERROR(SetHandler(kHelloId, &OnHello));

  ucp_address_t* address = nullptr;
  size_t length = 0;
  status = api_.ucp_worker_get_address(worker_, &address, &length);
  if (status != UCS_OK) return ToStatus(api_, status, "asking UCX for its address");
  address_.assign(reinterpret_cast<const char*>(address), length);
  api_.ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

Worker::~Worker() {
  for (void* request : closing_) api_.ucp_request_free(request);
  if (worker_ != nullptr) api_.ucp_worker_destroy(worker_);
  if (context_ != nullptr) api_.ucp_cleanup(context_);
}

bool Worker::Progress(int rounds) {
  bool moved = false;
  for (int i = 0; i < rounds && api_.ucp_worker_progress(worker_) != 0; ++i) moved = true;
  return moved;
}

int Worker::Arm(bool* ready) {
  // BUSY: something came since the last progress; anything else that is no success is looked at by progress, too.
  if (api_.ucp_worker_arm(worker_) != UCS_OK) *ready = true;
  return descriptor_;
}

void Worker::Sleep(std::chrono::milliseconds limit) {
  bool ready = false;
  pollfd descriptor = {Arm(&ready), POLLIN, 0};
  if (!ready) poll(&descriptor, 1, static_cast<int>(limit.count()));
}

void Worker::Signal() { api_.ucp_worker_signal(worker_); }

absl::StatusOr<ucp_ep_h> Worker::Connect(const std::string& address, ErrorHandler* handler) {
  handler->api = &api_;
  ucp_ep_params_t parameters = {};
  parameters.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = [](void* argument, ucp_ep_h, ucs_status_t status) {
    const auto* to = static_cast<const ErrorHandler*>(argument);
    to->call(to->argument, *to->api, status);
  };
  parameters.err_handler.arg = handler;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = api_.ucp_ep_create(worker_, &parameters, &endpoint);
  if (status != UCS_OK) return ToStatus(api_, status, "connecting");
  return endpoint;
}

void Worker::Close(ucp_ep_h endpoint, bool force) {
  ucp_request_param_t parameters = {};
  if (force) {
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  }
  ucs_status_ptr_t request = api_.ucp_ep_close_nbx(endpoint, &parameters);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void Worker::ReapClosed() {
  const auto finished = [this](void* request) {
    if (api_.ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    api_.ucp_request_free(request);
    return true;
  };
  closing_.erase(std::remove_if(closing_.begin(), closing_.end(), finished), closing_.end());
}

bool Worker::Settled() {
  if (flush_ != nullptr) {
    if (api_.ucp_request_check_status(flush_) == UCS_INPROGRESS) return false;
    api_.ucp_request_free(std::exchange(flush_, nullptr));
  }
  const ucp_request_param_t parameters = {};
  ucs_status_ptr_t request = api_.ucp_worker_flush_nbx(worker_, &parameters);
  if (UCS_PTR_IS_PTR(request)) flush_ = request;
  return flush_ == nullptr;
}

void Worker::Leave() {
  worker_ = nullptr;
  context_ = nullptr;
}

ucs_status_t Worker::SendHello(ucp_ep_h endpoint, Transfer* transfer) {
  ucp_request_param_t parameters = {};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_AM_SEND_FLAG_EAGER;
  parameters.cb.send = &Transfers::OnSent;
  parameters.user_data = transfer;
  return transfers_.Started(transfer, api_.ucp_am_send_nbx(endpoint, kHelloId, &transfer->hello, sizeof transfer->hello,
                                                           nullptr, 0, &parameters));
}

ucs_status_t Worker::Send(ucp_ep_h endpoint, Transfer* transfer, const void* data, size_t bytes) {
  const MessageHeader& header = transfer->wire.header;
  const size_t header_bytes = sizeof header + ((header.flags & kHasRecord) != 0 ? sizeof transfer->wire.record : 0);
  ucp_request_param_t parameters = {};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = limits_.Eager(header.piece_bytes) ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  parameters.cb.send = &Transfers::OnSent;
  parameters.user_data = transfer;
  return transfers_.Started(
      transfer, api_.ucp_am_send_nbx(endpoint, kMessageId, &transfer->wire, header_bytes, data, bytes, &parameters));
}

ucs_status_t Worker::Receive(Transfer* transfer, void* descriptor, void* data, size_t bytes) {
  ucp_request_param_t parameters = {};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.recv_am = &Transfers::OnReceived;
  parameters.user_data = transfer;
  return transfers_.Started(transfer, api_.ucp_am_recv_data_nbx(worker_, descriptor, data, bytes, &parameters));
}

void Worker::Discard(void* descriptor) { api_.ucp_am_data_release(worker_, descriptor); }

}  // namespace cohort::comm::ucx
