// What one message between two processes looks like, and how it proves where it comes from.
//
// Every message starts with a MessageHeader. Its `key` is an HMAC-SHA256 of the job's secret over job, epoch, sender
// and receiver, cut to 16 bytes: a process without the secret can't make it, and one of another job, epoch or rank
// makes another. It proves the sender; it does not encrypt, and whoever can read the network can repeat it.
//
// Both ends are little-endian machines running this version (`magic` covers the format); a CallRecord may follow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/segment/call_record.h"

namespace cohort::comm::ucx {

using MessageKey = std::array<uint8_t, 16>;

// The key of messages from one world rank to another. kInternal when OpenSSL refuses.
absl::StatusOr<MessageKey> MakeKey(std::string_view secret, std::string_view job_id, uint64_t epoch, int from, int to);
// Compares in a time that does not depend on where the keys differ.
bool SameKey(const MessageKey& a, const MessageKey& b);

inline constexpr uint32_t kMagic = 0x31786f43;  // "Cox1"
inline constexpr uint32_t kHasRecord = 1u << 0;
// No data: reports only `consumed`.
inline constexpr uint32_t kCreditOnly = 1u << 1;

// A message longer than kEagerBytes travels in pieces of kPieceBytes, each of which is announced first and moved when
// the receiver has posted memory for it. Shorter ones are sent at once and may have to be kept by the receiver.
inline constexpr uint64_t kEagerBytes = 16 << 10;
inline constexpr uint64_t kPieceBytes = 512 << 10;

struct MessageHeader {
  uint32_t magic = kMagic;
  uint32_t flags = 0;
  MessageKey key = {};
  int32_t from = 0;  // world rank
  uint32_t epoch = 0;
  uint64_t group = 0;
  uint32_t lane = 0;
  uint32_t piece_bytes = 0;
  uint64_t sequence = 0;       // of the piece, in its link and direction, from 0
  uint64_t signature = 0;      // of the operation
  uint64_t message_bytes = 0;  // all pieces of the message together
  uint64_t offset = 0;         // of this piece in its message
  uint64_t consumed = 0;       // flow control: Charge() of all that the sender of this header has consumed of the link
};
static_assert(sizeof(MessageHeader) == 88 && std::is_trivially_copyable_v<MessageHeader>);

// How many pieces a message has; at least 1.
inline uint64_t Pieces(uint64_t bytes) { return bytes <= kEagerBytes ? 1 : (bytes + kPieceBytes - 1) / kPieceBytes; }
inline bool Eager(uint64_t piece_bytes, uint64_t message_bytes) {
  return message_bytes <= kEagerBytes && piece_bytes == message_bytes;
}

// Flow control. A link's sender has at most kWindow outstanding in one direction, counted as Charge() of each piece:
// what the receiver may have to keep for it before anyone asks for it. So a receiver that is late bounds the memory it
// spends at kWindow per link, and its sender waits.
inline constexpr uint64_t kWindow = 256 << 10;
inline uint64_t Charge(uint64_t piece_bytes, uint64_t message_bytes) {
  return 256 + (Eager(piece_bytes, message_bytes) ? piece_bytes : 0);
}

struct ParsedHeader {
  MessageHeader header;
  bool has_record = false;
  runtime::CallRecord record;  // its site is terminated
};

// Reads what arrived, trusting nothing: sizes, flags and lengths agree, or kInvalidArgument says what does not.
absl::Status ParseHeader(const void* data, size_t bytes, ParsedHeader* parsed);

}  // namespace cohort::comm::ucx
