#include "cohort/comm/transport/net/keyed_hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "absl/status/status.h"

namespace cohort::comm::net {
namespace {

struct SipState {
  uint64_t v0, v1, v2, v3;

  void Rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void Absorb(uint64_t word) {
    v3 ^= word;
    Rounds(2);
    v0 ^= word;
  }
};

}  // namespace

absl::StatusOr<Nonce> MakeNonce() {
  Nonce nonce;
  if (RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) != 1) {
    return absl::InternalError("OpenSSL has no random bytes, which connections between nodes need");
  }
  return nonce;
}

absl::StatusOr<Mac> HmacOf(std::string_view secret, std::initializer_list<std::string_view> fields) {
  // Fields are preceded by their lengths.
  std::string text;
  for (const std::string_view field : fields) {
    text += std::to_string(field.size()) + ":";
    text += field;
  }
  std::array<uint8_t, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  Mac mac;
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), reinterpret_cast<const uint8_t*>(text.data()),
           text.size(), digest.data(), &length) == nullptr ||
      length != mac.size()) {
    return absl::InternalError("OpenSSL could not compute HMAC-SHA256, which authenticates messages between nodes");
  }
  std::copy_n(digest.begin(), mac.size(), mac.begin());
  return mac;
}

bool SameMac(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

uint64_t SipHash(const SessionKey& key, const void* data, size_t bytes) {
  uint64_t k0 = 0, k1 = 0;
  std::memcpy(&k0, key.data(), 8);
  std::memcpy(&k1, key.data() + 8, 8);
  // "somepseudorandomlygeneratedbytes", the constant of the definition.
  SipState state = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u,
                    k1 ^ 0x7465646279746573u};
  const auto* from = static_cast<const std::byte*>(data);
  size_t left = bytes;
  for (; left >= 8; left -= 8, from += 8) {
    uint64_t word = 0;
    std::memcpy(&word, from, 8);
    state.Absorb(word);
  }
  uint64_t last = uint64_t{bytes} << 56;
  uint64_t tail = 0;
  std::memcpy(&tail, from, left);
  state.Absorb(last | tail);
  state.v2 ^= 0xff;
  state.Rounds(4);
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace cohort::comm::net
