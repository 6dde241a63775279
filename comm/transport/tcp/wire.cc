#include "cohort/comm/transport/tcp/wire.h"

#include <cstring>

#include "cohort/runtime/segment/wait_graph.h"

namespace cohort::comm::tcp {
namespace {

constexpr uint64_t kMostKept = 256 << 20;
constexpr uint64_t kLargestWindow = 4 << 20;
constexpr uint64_t kSmallestWindow = 64 << 10;
static_assert(kLargestWindow <= runtime::kMostBufferedBytes);

}  // namespace

FlowLimits LimitsOf(int world_size) {
  const uint64_t share = kMostKept / static_cast<uint64_t>(std::max(world_size, 1));
  return {std::clamp(share, kSmallestWindow, kLargestWindow)};
}

std::string ConfigurationOf(const FlowLimits& limits, bool encrypted) {
  return "frame" + std::to_string(kMostFrameBytes) + "/window" + std::to_string(limits.window) +
         (encrypted ? "/tls1.3" : "");
}

uint64_t TagOf(const net::SessionKey& key, const FrameHeader& header, uint64_t number) {
  FrameHeader numbered = header;
  numbered.tag = number;
  return net::SipHash(key, &numbered, sizeof numbered);
}

runtime::CallRecord RecordAt(const std::byte* place) {
  runtime::CallRecord record;
  std::memcpy(&record, place, sizeof record);
  record.site[sizeof record.site - 1] = '\0';
  record.user_op[sizeof record.user_op - 1] = '\0';
  return record;
}

absl::Status CheckTagged(const net::SessionKey& key, const FrameHeader& header, uint64_t number) {
  absl::Status right = CheckFrame(header);
  if (right.ok() && TagOf(key, header, number) != header.tag) right = absl::PermissionDeniedError("a wrong tag");
  return right;
}

absl::Status CheckFrame(const FrameHeader& header) {
  if (header.magic != kFrameMagic) return absl::InvalidArgumentError("not a frame of this version");
  if ((header.flags & ~(kHasRecord | kGrantOnly | kRailBits)) != 0) return absl::InvalidArgumentError("unknown flags");
  if ((header.flags & kGrantOnly) != 0) {
    const bool empty = header.frame_bytes == 0 && header.message_bytes == 0 && header.offset == 0;
    return empty && header.flags == kGrantOnly ? absl::OkStatus() : absl::InvalidArgumentError("a grant with data");
  }
  if (header.frame_bytes > kMostFrameBytes) return absl::InvalidArgumentError("a frame that is too long");
  if (header.offset > header.message_bytes || header.frame_bytes > header.message_bytes - header.offset) {
    return absl::InvalidArgumentError("a frame beyond the end of its message");
  }
  if (header.frame_bytes == 0 && header.message_bytes != 0) return absl::InvalidArgumentError("an empty frame");
  return absl::OkStatus();
}

}  // namespace cohort::comm::tcp
