#include "cohort/comm/transport/ucx/session.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::ucx {
namespace {

// Comes first in what is published: another version of the wire publishes another word.
constexpr std::string_view kPublishedFormat = "cohort-ucx-2";

// Fields are preceded by their lengths, so that no two lists of fields give the same text.
void Append(std::string* text, std::string_view field) {
  *text += std::to_string(field.size()) + ":";
  *text += field;
}

std::string_view AsText(const Nonce& nonce) { return {reinterpret_cast<const char*>(nonce.data()), nonce.size()}; }

absl::StatusOr<std::array<uint8_t, 32>> Mac(std::string_view purpose, const SessionTerms& terms) {
  std::string text;
  Append(&text, kPublishedFormat);
  Append(&text, purpose);
  Append(&text, terms.job_id);
  Append(&text, std::to_string(terms.epoch));
  Append(&text, std::to_string(terms.from));
  Append(&text, std::to_string(terms.to));
  Append(&text, AsText(terms.from_nonce));
  Append(&text, AsText(terms.to_nonce));
  Append(&text, terms.configuration);
  std::array<uint8_t, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  std::array<uint8_t, 32> mac;
  if (HMAC(EVP_sha256(), terms.secret.data(), static_cast<int>(terms.secret.size()),
           reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest.data(), &length) == nullptr ||
      length != mac.size()) {
    return absl::InternalError("OpenSSL could not compute HMAC-SHA256, which authenticates messages between nodes");
  }
  std::copy_n(digest.begin(), mac.size(), mac.begin());
  return mac;
}

// Takes the word up to the next space off the front of `text`.
std::string_view TakeWord(std::string_view* text) {
  const size_t space = std::min(text->find(' '), text->size());
  const std::string_view word = text->substr(0, space);
  text->remove_prefix(std::min(space + 1, text->size()));
  return word;
}

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

absl::StatusOr<Hello> MakeHello(const SessionTerms& terms) {
  Hello hello;
  hello.from = terms.from;
  hello.nonce = terms.from_nonce;
  COHORT_ASSIGN_OR_RETURN(hello.proof, Mac("hello", terms));
  return hello;
}

absl::StatusOr<SessionKey> MakeSessionKey(const SessionTerms& terms) {
  COHORT_ASSIGN_OR_RETURN(const auto mac, Mac("session", terms));
  SessionKey key;
  std::copy_n(mac.begin(), key.size(), key.begin());
  return key;
}

bool HelloIsRight(const Hello& hello, const SessionTerms& terms) {
  const absl::StatusOr<Hello> right = MakeHello(terms);
  return right.ok() && hello.magic == kHelloMagic && hello.from == terms.from && hello.nonce == terms.from_nonce &&
         CRYPTO_memcmp(hello.proof.data(), right->proof.data(), hello.proof.size()) == 0;
}

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

std::string ToText(const Published& published) {
  std::string text(kPublishedFormat);
  text += " " + published.ucx_version + " " + published.configuration + " ";
  constexpr char kDigits[] = "0123456789abcdef";
  for (const uint8_t byte : published.nonce) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text + " " + published.address;
}

absl::StatusOr<Published> ParsePublished(std::string_view text) {
  if (TakeWord(&text) != kPublishedFormat) {
    return absl::InvalidArgumentError("it runs another version of Cohort: start all ranks from the same build");
  }
  Published published;
  published.ucx_version = TakeWord(&text);
  published.configuration = TakeWord(&text);
  const std::string_view nonce = TakeWord(&text);
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  bool right = nonce.size() == 2 * published.nonce.size() && !text.empty();
  for (size_t i = 0; right && i < published.nonce.size(); ++i) {
    const int high = digit(nonce[2 * i]), low = digit(nonce[2 * i + 1]);
    right = high >= 0 && low >= 0;
    published.nonce[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!right) return absl::InvalidArgumentError("what it has published about itself can't be read");
  published.address = text;
  return published;
}

}  // namespace cohort::comm::ucx
