// Tests the proof of a sender: proofs and keys differ with everything they stand for, and the published text comes back
// whole.
#include "cohort/comm/transport/ucx/session.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cohort/comm/transport/ucx/wire.h"

namespace cohort::comm::ucx {
namespace {

SessionTerms SomeTerms() {
  SessionTerms terms;
  terms.secret = "secret";
  terms.job_id = "job";
  terms.epoch = 1;
  terms.from = 0;
  terms.to = 1;
  terms.from_nonce.fill(1);
  terms.to_nonce.fill(2);
  terms.configuration = "c";
  return terms;
}

TEST(UcxSession, ProofsAndKeysDifferWithEverythingTheyStandFor) {
  const SessionTerms base = SomeTerms();
  const std::vector<std::function<void(SessionTerms&)>> changes = {
      [](SessionTerms& terms) { terms.secret = "secreu"; },         [](SessionTerms& terms) { terms.job_id = "jo"; },
      [](SessionTerms& terms) { terms.job_id = "job1:1"; },         [](SessionTerms& terms) { terms.epoch = 2; },
      [](SessionTerms& terms) { std::swap(terms.from, terms.to); }, [](SessionTerms& terms) { terms.to = 11; },
      [](SessionTerms& terms) { terms.from_nonce[15] ^= 1; },       [](SessionTerms& terms) { terms.to_nonce[0] ^= 1; },
      [](SessionTerms& terms) { terms.configuration = "d"; },
  };
  std::set<SessionKey> keys = {*MakeSessionKey(base)};
  const Hello hello = *MakeHello(base);
  EXPECT_TRUE(HelloIsRight(hello, base));
  for (const auto& change : changes) {
    SessionTerms other = base;
    change(other);
    EXPECT_FALSE(HelloIsRight(hello, other));
    EXPECT_TRUE(keys.insert(*MakeSessionKey(other)).second);
  }
  for (size_t byte = 0; byte < sizeof(Hello); ++byte) {
    Hello forged = hello;
    reinterpret_cast<uint8_t*>(&forged)[byte] ^= 0x40;
    EXPECT_FALSE(HelloIsRight(forged, base)) << "byte " << byte;
  }
}

TEST(UcxSession, AHelloIsWorthlessToALaterProcess) {
  const SessionTerms terms = SomeTerms();
  const Hello recorded = *MakeHello(terms);
  SessionTerms later = terms;
  later.to_nonce = *net::MakeNonce();
  EXPECT_NE(later.to_nonce, *net::MakeNonce());
  EXPECT_FALSE(HelloIsRight(recorded, later));
}

TEST(UcxSession, TagCoversEveryByteOfTheHeader) {
  const SessionKey key = *MakeSessionKey(SomeTerms());
  MessageHeader header;
  header.sequence = 7;
  const uint64_t tag = TagOf(key, header);
  for (size_t byte = 0; byte < offsetof(MessageHeader, tag); ++byte) {
    MessageHeader changed = header;
    reinterpret_cast<uint8_t*>(&changed)[byte] ^= 1;
    EXPECT_NE(TagOf(key, changed), tag) << "byte " << byte;
  }
  SessionKey other = key;
  other[3] ^= 1;
  EXPECT_NE(TagOf(other, header), tag);
}

TEST(UcxSession, PublishedTextComesBackWhole) {
  Published published = {"1.13", ConfigurationOf(kStreamLimits), *net::MakeNonce(), std::string("a b\0c ", 6)};
  const std::string text = ToText(published);
  const absl::StatusOr<Published> parsed = ParsePublished(text);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->ucx_version, published.ucx_version);
  EXPECT_EQ(parsed->configuration, published.configuration);
  EXPECT_EQ(parsed->nonce, published.nonce);
  EXPECT_EQ(parsed->address, published.address);
  for (size_t bytes = 0; bytes + published.address.size() <= text.size(); ++bytes) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePublished(text.substr(0, bytes)).status())) << bytes << " bytes";
  }
  EXPECT_NE(std::string(ParsePublished("1.13 abc").status().message()).find("same build"), std::string::npos);
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = text;
    for (int change = 0; change < 3; ++change) damaged[random() % damaged.size()] = static_cast<char>(random());
    (void)ParsePublished(damaged);  // must bear anything; the sanitizers watch
  }
}

}  // namespace
}  // namespace cohort::comm::ucx
