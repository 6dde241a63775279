#include "cohort/comm/transport/ucx/wire.h"

#include <algorithm>
#include <cstring>

namespace cohort::comm::ucx {

std::string ConfigurationOf(const WireLimits& limits) {
  return "eager" + std::to_string(limits.eager_bytes) + "/piece" + std::to_string(limits.piece_bytes) + "/window" +
         std::to_string(limits.window);
}

absl::Status ParseHeader(const void* data, size_t bytes, const WireLimits& limits, ParsedHeader* parsed) {
  MessageHeader& header = parsed->header;
  if (data == nullptr || bytes < sizeof header) return absl::InvalidArgumentError("message header too short");
  std::memcpy(&header, data, sizeof header);
  if (header.magic != kMagic) return absl::InvalidArgumentError("not a Cohort message of this version");
  if ((header.flags & ~(kHasRecord | kCreditOnly)) != 0) return absl::InvalidArgumentError("unknown message flags");
  parsed->has_record = (header.flags & kHasRecord) != 0;
  if (bytes != sizeof header + (parsed->has_record ? sizeof parsed->record : 0)) {
    return absl::InvalidArgumentError("message header of the wrong length");
  }
  if (header.lane > 0xffff || header.from < 0) return absl::InvalidArgumentError("message header out of range");
  const uint64_t expected = header.message_bytes <= limits.eager_bytes ? header.message_bytes
                            : header.offset < header.message_bytes
                                ? std::min(limits.piece_bytes, header.message_bytes - header.offset)
                                : 0;
  const bool aligned =
      header.message_bytes <= limits.eager_bytes ? header.offset == 0 : header.offset % limits.piece_bytes == 0;
  if (!aligned || header.piece_bytes != expected || (header.message_bytes > 0 && expected == 0)) {
    return absl::InvalidArgumentError("message header with a piece that does not fit its message");
  }
  if (parsed->has_record) {
    std::memcpy(&parsed->record, static_cast<const std::byte*>(data) + sizeof header, sizeof parsed->record);
    parsed->record.site[sizeof parsed->record.site - 1] = '\0';
  }
  return absl::OkStatus();
}

}  // namespace cohort::comm::ucx
