// Keyed hashes: two processes that share the job's secret prove themselves and their messages with them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "absl/status/statusor.h"

namespace cohort::comm::net {

using Nonce = std::array<uint8_t, 16>;
using SessionKey = std::array<uint8_t, 16>;
using Mac = std::array<uint8_t, 32>;

// 16 random bytes. kInternal when OpenSSL has none.
absl::StatusOr<Nonce> MakeNonce();
inline std::string_view AsText(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

// HMAC-SHA256 by `secret` of the fields. No two lists of fields give the same text. kInternal when OpenSSL refuses.
absl::StatusOr<Mac> HmacOf(std::string_view secret, std::initializer_list<std::string_view> fields);
// Takes a time that does not depend on where they differ.
bool SameMac(const Mac& a, const Mac& b);

// SipHash-2-4 (Aumasson and Bernstein, 2012): a message authentication code for short messages, 40 ns for a header.
uint64_t SipHash(const SessionKey& key, const void* data, size_t bytes);

}  // namespace cohort::comm::net
