#include "cohort/launcher/rpc/grpc_settings.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/synchronization/mutex.h"

namespace cohort::launcher {
namespace {

void OnlyFatal(gpr_log_func_args* args) {
  // gRPC aborts after messages of failed assertions, which it logs as errors like everything else.
  if (std::strstr(args->message, "assertion failed") == nullptr) return;
  const std::string line = std::string("gRPC: ") + args->message + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void QuietGrpc() {
  gpr_set_log_function(OnlyFatal);
  // Debian's Abseil looks for lock cycles unless told otherwise: 12 % of the time of a rendezvous.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

grpc::ChannelArguments DirectChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  // The probe of the bandwidth costs a ping and its answer for most messages. Without it the window stays as it is, so
  // it is made wide enough for the table of 10,000 ranks.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 20);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes + kMaxPageOverhead);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return arguments;
}

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace cohort::launcher
