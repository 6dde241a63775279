// The hashes are those of their authors, and no two lists of fields give the same one.
#include "cohort/comm/transport/net/keyed_hash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace cohort::comm::net {
namespace {

TEST(KeyedHash, SipHashGivesTheVectorsOfItsAuthors) {
  SessionKey key;
  std::iota(key.begin(), key.end(), uint8_t{0});
  std::vector<uint8_t> input(64);
  std::iota(input.begin(), input.end(), uint8_t{0});
  EXPECT_EQ(SipHash(key, input.data(), 0), 0x726fdb47dd0e0e31u);
  EXPECT_EQ(SipHash(key, input.data(), 8), 0x93f5f5799a932462u);
  EXPECT_EQ(SipHash(key, input.data(), 15), 0xa129ca6149be45e5u);
}

TEST(KeyedHash, ListsOfFieldsAreToldApart) {
  EXPECT_EQ(*HmacOf("key", {"a", "bc"}), *HmacOf("key", {"a", "bc"}));
  EXPECT_NE(*HmacOf("key", {"a", "bc"}), *HmacOf("key", {"ab", "c"}));
  EXPECT_NE(*HmacOf("key", {"a", ""}), *HmacOf("key", {"a"}));
  EXPECT_NE(*HmacOf("key", {"1:a"}), *HmacOf("key", {"a"}));
  EXPECT_NE(*HmacOf("kex", {"a"}), *HmacOf("key", {"a"}));
  EXPECT_NE(*MakeNonce(), *MakeNonce());
}

}  // namespace
}  // namespace cohort::comm::net
