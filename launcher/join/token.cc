#include "cohort/launcher/join/token.h"

#include <openssl/sha.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

constexpr char kPrefix[] = "cohort1.";
constexpr size_t kCheckBytes = 4;

std::string Digest(const std::string& purpose, const std::string& text) {
  const std::string input = purpose + '\0' + text;
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  ::SHA256(reinterpret_cast<const unsigned char*>(input.data()), input.size(),
           reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

}  // namespace

JoinKey MakeJoinKey(const std::string& secret) {
  JoinKey key;
  const std::string digest = Digest("cohort join key", secret);
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<unsigned char>(digest[i]);
  return key;
}

std::string KnockOf(const JoinKey& key) {
  return Digest("cohort join knock", std::string(key.begin(), key.end())).substr(0, kKnockBytes);
}

std::string FormatToken(const JoinToken& token) {
  const std::string content = token.addresses + '\n' + token.secret;
  return kPrefix + absl::WebSafeBase64Escape(content + Digest("cohort token", content).substr(0, kCheckBytes));
}

absl::StatusOr<JoinToken> ParseToken(const std::string& text) {
  if (!text.starts_with(kPrefix) || text.size() > kMaxToken) {
    return InvalidArgumentError(Remedy::kNoToken,
                                "this is no token; it begins with " + std::string(kPrefix) +
                                    " and is the last word of the line that dlaunch printed on the first machine");
  }
  std::string bytes;
  const bool readable = absl::WebSafeBase64Unescape(text.substr(sizeof kPrefix - 1), &bytes);
  const size_t size = bytes.size() < kCheckBytes ? 0 : bytes.size() - kCheckBytes;
  const std::string content = bytes.substr(0, size);
  const size_t newline = content.find('\n');
  if (!readable || newline == std::string::npos ||
      bytes.substr(size) != Digest("cohort token", content).substr(0, kCheckBytes)) {
    return InvalidArgumentError(Remedy::kDamagedToken,
                                "the token is damaged; copy the whole line that dlaunch printed");
  }
  return JoinToken{.secret = content.substr(newline + 1), .addresses = content.substr(0, newline)};
}

}  // namespace cohort::launcher
