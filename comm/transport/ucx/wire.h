// The format of one message between two processes. A MessageHeader comes first, whose tag proves the sender
// (session.h); a CallRecord may follow, then the data. Both ends are little-endian machines of this version.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "cohort/comm/transport/ucx/session.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/segment/wait_graph.h"

namespace cohort::comm::ucx {

inline constexpr uint32_t kMagic = 0x33786f43;  // "Cox3"
inline constexpr uint32_t kHasRecord = 1u << 0;
// No data: reports only `consumed`.
inline constexpr uint32_t kCreditOnly = 1u << 1;

// How messages are cut and how much may be under way. Both ends must use the same (it is part of ConfigurationOf).
//
// A message longer than eager_bytes travels in pieces of piece_bytes. A piece of at most eager_bytes is sent at once
// and may have to be kept by the receiver; a longer one is announced first, and moved when the receiver has posted
// memory for it.
//
// Flow control: a link's sender has at most `window` outstanding in one direction, counted as Charge() of each piece:
// what the receiver may have to keep before anyone asks for it. So a receiver that is late bounds the memory it spends
// at `window` per link, and its sender waits.
struct WireLimits {
  uint64_t eager_bytes = 0;
  uint64_t piece_bytes = 0;
  uint64_t window = 0;

  // How many pieces a message has; at least 1.
  uint64_t Pieces(uint64_t bytes) const { return bytes <= eager_bytes ? 1 : (bytes + piece_bytes - 1) / piece_bytes; }
  bool Eager(uint64_t bytes_of_piece) const { return bytes_of_piece <= eager_bytes; }
  uint64_t Charge(uint64_t bytes_of_piece) const { return 256 + (Eager(bytes_of_piece) ? bytes_of_piece : 0); }
};

// Byte streams (TCP): the kernel copies anyway, so an announcement costs a round trip and saves nothing. Every piece is
// one segment, sent from the user's memory, received by UCX in one buffer and copied or reduced from there.
inline constexpr WireLimits kStreamLimits = {256 << 10, 256 << 10, (4 << 20) + (64 << 10)};
// Networks that move memory themselves.
inline constexpr WireLimits kRdmaLimits = {16 << 10, 512 << 10, 256 << 10};
static_assert(std::max(kStreamLimits.window, kRdmaLimits.window) <= runtime::kMostBufferedBytes);
// The limits in a word without spaces, for comparison and for people.
std::string ConfigurationOf(const WireLimits& limits);

struct MessageHeader {
  uint32_t magic = kMagic;
  uint32_t flags = 0;
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
  uint64_t tag = 0;            // TagOf
};
static_assert(sizeof(MessageHeader) == 80 && std::is_trivially_copyable_v<MessageHeader>);
// If this fails, the format has changed: kMagic changes with it.
static_assert(kMagic == 0x33786f43 && sizeof(MessageHeader) == 80 && sizeof(runtime::CallRecord) == 200);

// Proves that the holder of `key` has made this header. A stranger who only reads the network can't make another, and
// one that is repeated has a sequence number that was there before. The data is not covered.
inline uint64_t TagOf(const SessionKey& key, const MessageHeader& header) {
  return net::SipHash(key, &header, offsetof(MessageHeader, tag));
}

struct ParsedHeader {
  MessageHeader header;
  bool has_record = false;
  runtime::CallRecord record;  // its site is terminated
};

// Reads what arrived, trusting nothing: sizes, flags and lengths agree, or kInvalidArgument says what does not.
absl::Status ParseHeader(const void* data, size_t bytes, const WireLimits& limits, ParsedHeader* parsed);

}  // namespace cohort::comm::ucx
