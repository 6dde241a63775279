// The format of what travels over a connection once both sides are proved (handshake.h): frames. A FrameHeader comes
// first, a CallRecord may follow, then the data. Both ends are little-endian machines of this version.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "cohort/comm/transport/net/keyed_hash.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm::tcp {

inline constexpr uint32_t kFrameMagic = 0x31546f43;  // "CoT1"
inline constexpr uint16_t kHasRecord = 1u << 0;
// No data: reports only `granted`.
inline constexpr uint16_t kGrantOnly = 1u << 1;
// The frame is striped over these rails and the connection's own socket (rails.h): the bits of rails 1 to 7.
inline constexpr int kMostRails = 8;
inline constexpr uint16_t kRailBits = 0xfe00;
inline constexpr uint16_t RailBit(int rail) { return static_cast<uint16_t>(0x100u << rail); }

// A longer message travels in several frames, so that one that must be copied stays bounded.
inline constexpr uint64_t kMostFrameBytes = 4 << 20;

// Flow control, of one direction of a link. The receiver grants a place in the stream of charges up to which the
// sender may go: what it has consumed, and all of the receives that are posted, and a window. So a receiver that is
// late keeps at most a window of the link, and one that is early never makes the sender wait.
struct FlowLimits {
  uint64_t window = 0;

  // The charge of a frame.
  static uint64_t Charge(uint64_t bytes) { return kOverhead + bytes; }
  // The longest frame that may begin a message's remaining `left` bytes when `allowed` may still be charged; -1: none
  // yet. A frame is cut short only where it stays worth a system call.
  int64_t FrameBytes(uint64_t left, uint64_t allowed) const {
    if (allowed < kOverhead) return -1;
    const uint64_t most = std::min(allowed - kOverhead, kMostFrameBytes);
    if (left <= most) return static_cast<int64_t>(left);
    return most < window / 4 ? -1 : static_cast<int64_t>(most / kCut * kCut);
  }

  static constexpr uint64_t kOverhead = 256;
  // No element of any type lies on both sides of a cut.
  static constexpr uint64_t kCut = 64;
};
// The window is smaller in larger worlds: a process that every other one sends to, unasked, keeps 256 MiB in all.
FlowLimits LimitsOf(int world_size);
// The limits, and whether TLS carries the frames, in a word without spaces, for comparison.
std::string ConfigurationOf(const FlowLimits& limits, bool encrypted = false);

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t flags = 0;
  uint16_t lane = 0;
  uint32_t epoch = 0;
  uint32_t frame_bytes = 0;  // of data in this frame
  uint64_t group = 0;
  uint64_t signature = 0;      // of the operation
  uint64_t message = 0;        // its number in its link and direction, from 0
  uint64_t message_bytes = 0;  // all frames of the message together
  uint64_t offset = 0;         // of this frame in its message
  uint64_t granted = 0;        // flow control of the other direction
  uint64_t tag = 0;            // TagOf
};
static_assert(sizeof(FrameHeader) == 72 && std::is_trivially_copyable_v<FrameHeader>);

// Proves that the holder of `key` has made this header as the `number`-th of its direction of the connection. The data
// is not covered.
uint64_t TagOf(const net::SessionKey& key, const FrameHeader& header, uint64_t number);

// Whether the header makes sense, trusting nothing of it: kInvalidArgument says what does not.
absl::Status CheckFrame(const FrameHeader& header);
// The same, and whether its tag is that of the `number`-th: kPermissionDenied.
absl::Status CheckTagged(const net::SessionKey& key, const FrameHeader& header, uint64_t number);
// The record at this place, its texts ended whatever the peer has sent.
runtime::CallRecord RecordAt(const std::byte* place);
// How many bytes come before the data.
inline size_t HeadBytes(const FrameHeader& header) {
  return sizeof header + ((header.flags & kHasRecord) != 0 ? sizeof(runtime::CallRecord) : 0);
}
inline constexpr size_t kMostHeadBytes = sizeof(FrameHeader) + sizeof(runtime::CallRecord);
// If this fails, the format has changed: kFrameMagic changes with it.
static_assert(kFrameMagic == 0x31546f43 && sizeof(FrameHeader) == 72 && sizeof(runtime::CallRecord) == 200);

}  // namespace cohort::comm::tcp
