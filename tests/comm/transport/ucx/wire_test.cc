// The parser of outside bytes refuses whatever does not fit.
#include "cohort/comm/transport/ucx/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace cohort::comm::ucx {
namespace {

MessageHeader Valid(const WireLimits& limits, uint64_t message_bytes, uint64_t piece) {
  MessageHeader header;
  header.message_bytes = message_bytes;
  header.offset = piece * limits.piece_bytes;
  header.piece_bytes = static_cast<uint32_t>(
      limits.Pieces(message_bytes) == 1 ? message_bytes : std::min(limits.piece_bytes, message_bytes - header.offset));
  return header;
}

bool Parses(const WireLimits& limits, const MessageHeader& header) {
  ParsedHeader parsed;
  return ParseHeader(&header, sizeof header, limits, &parsed).ok();
}

class UcxWire : public testing::TestWithParam<WireLimits> {
 protected:
  const WireLimits limits = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Limits, UcxWire, testing::Values(kStreamLimits, kRdmaLimits));

TEST_P(UcxWire, AcceptsEveryPieceOfAMessageAndNothingElse) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, limits.eager_bytes, limits.eager_bytes + 1, limits.piece_bytes,
                               3 * limits.piece_bytes + 7}) {
    for (uint64_t piece = 0; piece < limits.Pieces(bytes); ++piece) {
      MessageHeader header = Valid(limits, bytes, piece);
      EXPECT_TRUE(Parses(limits, header)) << bytes << " bytes, piece " << piece;
      header.piece_bytes += 1;
      EXPECT_FALSE(Parses(limits, header));
      header = Valid(limits, bytes, piece);
      header.offset += 1;
      EXPECT_FALSE(Parses(limits, header));
      header = Valid(limits, bytes, piece);
      header.magic ^= 1;
      EXPECT_FALSE(Parses(limits, header));
    }
    MessageHeader beyond = Valid(limits, bytes, 0);
    beyond.offset = limits.Pieces(bytes) * limits.piece_bytes;
    EXPECT_FALSE(Parses(limits, beyond));
  }
  MessageHeader header = Valid(limits, 8, 0);
  header.flags = 1u << 7;
  EXPECT_FALSE(Parses(limits, header));
  header = Valid(limits, 8, 0);
  header.from = -1;
  EXPECT_FALSE(Parses(limits, header));
}

TEST_P(UcxWire, RecordsAreTerminatedAndLengthsChecked) {
  std::vector<std::byte> bytes(sizeof(MessageHeader) + sizeof(runtime::CallRecord), std::byte{'x'});
  MessageHeader header = Valid(limits, 8, 0);
  header.flags = kHasRecord;
  std::memcpy(bytes.data(), &header, sizeof header);
  ParsedHeader parsed;
  ASSERT_TRUE(ParseHeader(bytes.data(), bytes.size(), limits, &parsed).ok());
  EXPECT_LT(std::strlen(parsed.record.site), sizeof parsed.record.site);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(ParseHeader(bytes.data(), length, limits, &parsed).ok()) << length;
  }
}

TEST_P(UcxWire, RandomBytesNeverPassAsAPieceThatDoesNotFit) {
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20000; ++round) {
    MessageHeader header = Valid(limits, random() % (4 * limits.piece_bytes), 0);
    auto* raw = reinterpret_cast<unsigned char*>(&header);
    for (int change = 0; change < 3; ++change) raw[random() % sizeof header] = static_cast<unsigned char>(random());
    ParsedHeader parsed;
    if (!ParseHeader(&header, sizeof header, limits, &parsed).ok()) continue;
    ASSERT_LE(parsed.header.piece_bytes, limits.piece_bytes) << "seed " << seed;
    ASSERT_LE(parsed.header.offset + parsed.header.piece_bytes, parsed.header.message_bytes) << "seed " << seed;
  }
}

}  // namespace
}  // namespace cohort::comm::ucx
