#include "cohort/comm/transport/ucx/session.h"

#include <algorithm>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::ucx {
namespace {

// Comes first in what is published: another version of the wire publishes another word.
constexpr std::string_view kPublishedFormat = "cohort-ucx-2";

absl::StatusOr<net::Mac> MacOf(std::string_view purpose, const SessionTerms& terms) {
  return net::HmacOf(terms.secret, {kPublishedFormat, purpose, terms.job_id, std::to_string(terms.epoch),
                                    std::to_string(terms.from), std::to_string(terms.to), net::AsText(terms.from_nonce),
                                    net::AsText(terms.to_nonce), terms.configuration});
}

// Takes the word up to the next space off the front of `text`.
std::string_view TakeWord(std::string_view* text) {
  const size_t space = std::min(text->find(' '), text->size());
  const std::string_view word = text->substr(0, space);
  text->remove_prefix(std::min(space + 1, text->size()));
  return word;
}

}  // namespace

absl::StatusOr<Hello> MakeHello(const SessionTerms& terms) {
  Hello hello;
  hello.from = terms.from;
  hello.nonce = terms.from_nonce;
  COHORT_ASSIGN_OR_RETURN(hello.proof, MacOf("hello", terms));
  return hello;
}

absl::StatusOr<SessionKey> MakeSessionKey(const SessionTerms& terms) {
  COHORT_ASSIGN_OR_RETURN(const auto mac, MacOf("session", terms));
  SessionKey key;
  std::copy_n(mac.begin(), key.size(), key.begin());
  return key;
}

bool HelloIsRight(const Hello& hello, const SessionTerms& terms) {
  const absl::StatusOr<Hello> right = MakeHello(terms);
  return right.ok() && hello.magic == kHelloMagic && hello.from == terms.from && hello.nonce == terms.from_nonce &&
         net::SameMac(hello.proof, right->proof);
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
