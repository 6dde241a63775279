#include "comm/transport/ucx/wire.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>

namespace cohort::comm::ucx {

absl::StatusOr<MessageKey> MakeKey(std::string_view secret, std::string_view job_id, uint64_t epoch, int from, int to) {
  std::string text = "cohort ucx 1|";
  text += std::to_string(job_id.size()) + "|";
  text += job_id;
  text += "|" + std::to_string(epoch) + "|" + std::to_string(from) + "|" + std::to_string(to);
  std::array<uint8_t, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), reinterpret_cast<const uint8_t*>(text.data()),
           text.size(), digest.data(), &length) == nullptr ||
      length < sizeof(MessageKey)) {
    return absl::InternalError("OpenSSL could not compute HMAC-SHA256, which authenticates messages between nodes");
  }
  MessageKey key;
  std::copy_n(digest.begin(), key.size(), key.begin());
  return key;
}

bool SameKey(const MessageKey& a, const MessageKey& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

absl::Status ParseHeader(const void* data, size_t bytes, ParsedHeader* parsed) {
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
  const uint64_t expected = header.message_bytes <= kEagerBytes ? header.message_bytes
                            : header.offset < header.message_bytes
                                ? std::min(kPieceBytes, header.message_bytes - header.offset)
                                : 0;
  const bool aligned = header.message_bytes <= kEagerBytes ? header.offset == 0 : header.offset % kPieceBytes == 0;
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
