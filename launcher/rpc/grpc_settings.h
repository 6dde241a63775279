// What both sides of the rendezvous' connection share: limits, and how gRPC is set up in a process that also forks
// ranks.
#pragma once

#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include <cstddef>

#include "absl/status/status.h"

namespace cohort::launcher {

inline constexpr int kMaxMessageBytes = 4 << 20;
inline constexpr int kMaxPageOverhead = 64 << 10;  // of the log, around a message
// Unsent bytes to one receiver; beyond, it is too slow and its stream ends.
inline constexpr size_t kMaxQueuedBytes = 64 << 20;
inline constexpr int kHandshakeTimeoutMs = 5000;

// Keeps gRPC's own log lines (strangers' failed handshakes, for one) off the user's terminal; what concerns the job
// comes back as a status. Fatal errors are still printed. Any number of times, any thread.
void QuietGrpc();

// A channel of its own, straight to the address: no proxy, no retries, no shared connection, bounded messages.
grpc::ChannelArguments DirectChannel();

// The same code and message: the numbers are the same on both sides.
absl::Status ToAbsl(const grpc::Status& status);

}  // namespace cohort::launcher
