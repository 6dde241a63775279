#include "comm/transport/ucx/worker.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "runtime/base/status_macros.h"

namespace cohort::comm::ucx {
namespace {

constexpr unsigned kMessageId = 7;

absl::Status SetOption(const UcpApi& api, ucp_config_t* config, const char* name, const std::string& value) {
  const ucs_status_t status = api.ucp_config_modify(config, name, value.c_str());
  if (status == UCS_OK) return absl::OkStatus();
  return absl::InternalError("UCX " + std::to_string(api.version_major) + "." + std::to_string(api.version_minor) +
                             " refused " + name + "=" + value + ": " + api.ucs_status_string(status));
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
  // Never shared memory: inside a host our own transport is used, and UCX's would not see a peer's death.
  COHORT_RETURN_IF_ERROR(SetOption(api_, config, "TLS", options.only_tcp ? "tcp" : "^shm,self"));
  if (!options.interface.empty()) {
    COHORT_RETURN_IF_ERROR(SetOption(api_, config, "NET_DEVICES", options.interface));
  }
  return absl::OkStatus();
}

absl::Status Worker::Init(const WorkerOptions& options) {
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
  COHORT_RETURN_IF_ERROR(configured);

  ucp_worker_params_t parameters = {};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // the engine has one owner at a time
  status = api_.ucp_worker_create(context_, &parameters, &worker_);
  if (status != UCS_OK) return ToStatus(api_, status, "making a UCX worker");
  status = api_.ucp_worker_get_efd(worker_, &descriptor_);
  if (status != UCS_OK) return ToStatus(api_, status, "asking UCX for a descriptor to sleep on");

  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &Worker::OnActiveMessage;
  handler.arg = this;
  status = api_.ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return ToStatus(api_, status, "registering with UCX for messages");

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

Transfer* Worker::NewTransfer() {
  if (free_ == nullptr) {
    transfers_.push_back(std::make_unique<Transfer>());
    free_ = transfers_.back().get();
    free_->worker = this;
  }
  Transfer* transfer = std::exchange(free_, free_->next);
  transfer->next = nullptr;
  transfer->done = nullptr;
  transfer->owner = nullptr;
  transfer->index = 0;
  return transfer;
}

void Worker::Release(Transfer* transfer) { transfer->next = std::exchange(free_, transfer); }

ucs_status_t Worker::Started(Transfer* transfer, ucs_status_ptr_t request) {
  if (UCS_PTR_IS_PTR(request)) {
    ++under_way_;
    return UCS_INPROGRESS;
  }
  Release(transfer);
  return UCS_PTR_STATUS(request);
}

ucs_status_t Worker::Send(ucp_ep_h endpoint, Transfer* transfer, const void* data, size_t bytes) {
  const MessageHeader& header = transfer->wire.header;
  transfer->header_bytes = sizeof header + ((header.flags & kHasRecord) != 0 ? sizeof transfer->wire.record : 0);
  ucp_request_param_t parameters = {};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = Eager(header.piece_bytes, header.message_bytes) ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  parameters.cb.send = &Worker::OnSent;
  parameters.user_data = transfer;
  return Started(transfer, api_.ucp_am_send_nbx(endpoint, kMessageId, &transfer->wire, transfer->header_bytes, data,
                                                bytes, &parameters));
}

ucs_status_t Worker::Receive(Transfer* transfer, void* descriptor, void* data, size_t bytes) {
  ucp_request_param_t parameters = {};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.recv_am = &Worker::OnReceived;
  parameters.user_data = transfer;
  return Started(transfer, api_.ucp_am_recv_data_nbx(worker_, descriptor, data, bytes, &parameters));
}

void Worker::Discard(void* descriptor) { api_.ucp_am_data_release(worker_, descriptor); }

void Worker::OnSent(void* request, ucs_status_t status, void* argument) {
  auto* transfer = static_cast<Transfer*>(argument);
  Worker* worker = transfer->worker;
  worker->api_.ucp_request_free(request);
  --worker->under_way_;
  if (transfer->done != nullptr) transfer->done(transfer->owner, transfer, status);
  worker->Release(transfer);
}

void Worker::OnReceived(void* request, ucs_status_t status, size_t, void* argument) {
  OnSent(request, status, argument);
}

ucs_status_t Worker::OnActiveMessage(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                     const ucp_am_recv_param_t* parameters) {
  auto* worker = static_cast<Worker*>(self);
  const bool rendezvous = (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return worker->sink_->OnMessage(header, header_bytes, data, bytes, rendezvous) ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace cohort::comm::ucx
