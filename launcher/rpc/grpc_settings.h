// The settings that both sides of the rendezvous' connection share: limits, and gRPC's setup in a process that also
// forks ranks.
#pragma once

#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include <cstddef>

#include "absl/status/status.h"

namespace cohort::launcher {

inline constexpr int kMaxMessageBytes = 4 << 20;
inline constexpr int kMaxPageOverhead = 64 << 10;  // of the log, around a message
// Unsent bytes to one receiver. Beyond them it is too slow, and its stream ends.
inline constexpr size_t kMaxQueuedBytes = 64 << 20;
inline constexpr int kHandshakeTimeoutMs = 5000;

// Keeps gRPC's own log lines (such as strangers' failed handshakes) off the user's terminal. Errors of the job come
// back as a status. Fatal errors are still printed. Also ends Abseil's search for lock cycles in this process, which
// gRPC's locks would pay for. Any thread may call it, any number of times.
void QuietGrpc();

// Returns settings of a separate channel, straight to the address: no proxy, no retries, no shared connection, bounded
// messages, no probes of the bandwidth.
grpc::ChannelArguments DirectChannel();

// Returns the same code and message. The numbers are the same on both sides.
absl::Status ToAbsl(const grpc::Status& status);

}  // namespace cohort::launcher
