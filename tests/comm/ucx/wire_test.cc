// The parser of outside bytes refuses whatever does not fit; keys differ with everything they stand for.
#include "comm/transport/ucx/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "comm/transport/ucx/net_interface.h"

namespace cohort::comm::ucx {
namespace {

MessageHeader Valid(uint64_t message_bytes, uint64_t piece) {
  MessageHeader header;
  header.message_bytes = message_bytes;
  header.offset = piece * kPieceBytes;
  header.piece_bytes = static_cast<uint32_t>(
      Pieces(message_bytes) == 1 ? message_bytes : std::min(kPieceBytes, message_bytes - header.offset));
  return header;
}

bool Parses(const MessageHeader& header) {
  ParsedHeader parsed;
  return ParseHeader(&header, sizeof header, &parsed).ok();
}

TEST(UcxWire, AcceptsEveryPieceOfAMessageAndNothingElse) {
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, kEagerBytes, kEagerBytes + 1, kPieceBytes, 3 * kPieceBytes + 7}) {
    for (uint64_t piece = 0; piece < Pieces(bytes); ++piece) {
      MessageHeader header = Valid(bytes, piece);
      EXPECT_TRUE(Parses(header)) << bytes << " bytes, piece " << piece;
      header.piece_bytes += 1;
      EXPECT_FALSE(Parses(header));
      header = Valid(bytes, piece);
      header.offset += 1;
      EXPECT_FALSE(Parses(header));
      header = Valid(bytes, piece);
      header.magic ^= 1;
      EXPECT_FALSE(Parses(header));
    }
    MessageHeader beyond = Valid(bytes, 0);
    beyond.offset = Pieces(bytes) * kPieceBytes;
    EXPECT_FALSE(Parses(beyond));
  }
  MessageHeader header = Valid(8, 0);
  header.flags = 1u << 7;
  EXPECT_FALSE(Parses(header));
  header = Valid(8, 0);
  header.from = -1;
  EXPECT_FALSE(Parses(header));
}

TEST(UcxWire, RecordsAreTerminatedAndLengthsChecked) {
  std::vector<std::byte> bytes(sizeof(MessageHeader) + sizeof(runtime::CallRecord), std::byte{'x'});
  MessageHeader header = Valid(8, 0);
  header.flags = kHasRecord;
  std::memcpy(bytes.data(), &header, sizeof header);
  ParsedHeader parsed;
  ASSERT_TRUE(ParseHeader(bytes.data(), bytes.size(), &parsed).ok());
  EXPECT_LT(std::strlen(parsed.record.site), sizeof parsed.record.site);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(ParseHeader(bytes.data(), length, &parsed).ok()) << length;
  }
}

TEST(UcxWire, RandomBytesNeverPassAsAPieceThatDoesNotFit) {
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20000; ++round) {
    MessageHeader header = Valid(random() % (4 * kPieceBytes), 0);
    auto* raw = reinterpret_cast<unsigned char*>(&header);
    for (int change = 0; change < 3; ++change) raw[random() % sizeof header] = static_cast<unsigned char>(random());
    ParsedHeader parsed;
    if (!ParseHeader(&header, sizeof header, &parsed).ok()) continue;
    ASSERT_LE(parsed.header.piece_bytes, kPieceBytes) << "seed " << seed;
    ASSERT_LE(parsed.header.offset + parsed.header.piece_bytes, parsed.header.message_bytes) << "seed " << seed;
  }
}

TEST(UcxWire, KeysDifferWithEverythingTheyStandFor) {
  std::set<MessageKey> keys;
  const auto add = [&keys](std::string_view secret, std::string_view job, uint64_t epoch, int from, int to) {
    const auto key = MakeKey(secret, job, epoch, from, to);
    ASSERT_TRUE(key.ok());
    EXPECT_TRUE(SameKey(*key, *MakeKey(secret, job, epoch, from, to)));
    EXPECT_TRUE(keys.insert(*key).second);
  };
  add("s", "job", 1, 0, 1);
  add("t", "job", 1, 0, 1);
  add("s", "jo", 1, 0, 1);
  add("s", "job", 2, 0, 1);
  add("s", "job", 1, 1, 0);
  add("s", "job", 1, 0, 11);
  add("s", "job|1", 1, 0, 1);
}

TEST(UcxInterface, IsFoundByAddress) {
  EXPECT_EQ(*InterfaceOf("127.0.0.1"), "lo");
  EXPECT_TRUE(absl::IsInvalidArgument(InterfaceOf("not an address").status()));
  const auto absent = InterfaceOf("192.0.2.77");  // reserved for documentation
  EXPECT_TRUE(absl::IsNotFound(absent.status()));
  EXPECT_NE(std::string(absent.status().message()).find("127.0.0.1"), std::string::npos);
}

}  // namespace
}  // namespace cohort::comm::ucx
