// The bytes of a tape. A file is kTapeMagic and then entries: one byte of TapeEntry, the body, and a check. A check is
// the end of a hash of all entries so far, so that it speaks for those before it, too. Numbers have 7 bits a byte, the
// lowest first.
//
// Most entries have the length of their body before it, and 4 bytes of check. A call has no length, and says only what
// CallPrediction does not tell: one that repeats an earlier one takes 4 bytes beside its result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace cohort::runtime {

inline constexpr std::string_view kTapeMagic = "cohort tape\r\n\x1a\n";

enum class TapeEntry : uint8_t {
  kHead = 1,      // TapeHead
  kGroup = 2,     // index, id (8 bytes), size, members
  kSite = 3,      // index, CallRecord: the part of a call that does not change with each repetition
  kShape = 4,     // index, group, site, count, bytes received, 0 or 1: PutCounts follows. Index 0 forgets all others
  kBegin = 5,     // see below
  kResult = 6,    // how many calls have begun since the one that it belongs to; then the bytes that it got
  kCall = 7,      // kBegin, and at once the bytes that it got
  kFailure = 8,   // group, code, text: the group has failed
  kLookup = 9,    // TapeLookup
  kStep = 10,     // the step that Runtime::OnPreemption was asked about, and its answer: 0 or 1
  kThreads = 11,  // calls are made by several threads
  kEnd = 12,      // kTapeEnd: the rank has ended in order
};

// A kBegin is: with kOtherShape the index of its shape, with kOtherTag by how much the tag differs from the predicted
// one (PutDifference), and a hash of its input (2 bytes). The flags lie in the byte of the TapeEntry.
inline constexpr uint8_t kEntryBits = 0x0f;
inline constexpr uint8_t kOtherShape = 0x10;
inline constexpr uint8_t kOtherTag = 0x20;
inline constexpr uint8_t kOtherPart = 0x40;  // kResult, of a call in an earlier file: its length comes before it

// Shapes that a tape knows at a time.
inline constexpr uint32_t kMostShapes = 4096;

inline constexpr std::string_view kTapeEnd = "end of tape";

inline constexpr size_t kCheckBytes = 4;

// Bytes of the check of a call's entry, with a result of these bytes. One is enough for the small ones, of which many
// follow.
constexpr size_t CheckBytesOf(uint64_t result) { return result <= 256 ? 1 : 4; }

constexpr bool IsCallEntry(TapeEntry entry) {
  return entry == TapeEntry::kBegin || entry == TapeEntry::kResult || entry == TapeEntry::kCall;
}

inline void PutNumber(uint64_t value, std::string* to) {
  for (; value >= 0x80; value >>= 7) to->push_back(static_cast<char>(value | 0x80));
  to->push_back(static_cast<char>(value));
}

// The difference of two numbers, small whichever is the larger.
inline void PutDifference(uint64_t from, uint64_t to_number, std::string* to) {
  const auto difference = static_cast<int64_t>(to_number - from);
  PutNumber(static_cast<uint64_t>(difference) << 1 ^ static_cast<uint64_t>(difference >> 63), to);
}
inline uint64_t AddDifference(uint64_t from, uint64_t put) { return from + ((put >> 1) ^ (~(put & 1) + 1)); }

// Takes bytes from the front, never more than there are.
class TapeBytes {
 public:
  explicit TapeBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // Whether something was asked for that was not there. All answers are then zero or empty.
  bool failed() const { return failed_; }
  size_t left() const { return bytes_.size(); }
  uint64_t Number() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<uint64_t>(bytes_.front());
      bytes_ = bytes_.subspan(1);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    Fail();
    return 0;
  }
  template <typename Value>
  Value Plain() {
    Value value{};
    const std::span<const std::byte> bytes = Bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> Bytes(uint64_t count) {
    if (count > bytes_.size()) {
      Fail();
      return {};
    }
    const std::span<const std::byte> taken = bytes_.first(static_cast<size_t>(count));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> Rest() { return Bytes(bytes_.size()); }

 private:
  void Fail() {
    failed_ = true;
    bytes_ = {};
  }
  std::span<const std::byte> bytes_;
  bool failed_ = false;
};

inline std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The counts of a variable-count call: bytes that it moves, for people; then each list with its length.
inline void PutCounts(uint64_t bytes, std::span<const int64_t> in, std::span<const int64_t> out, std::string* to) {
  PutNumber(bytes, to);
  for (const std::span<const int64_t> counts : {in, out}) {
    PutNumber(counts.size(), to);
    for (const int64_t count : counts) PutNumber(static_cast<uint64_t>(count), to);
  }
}

}  // namespace cohort::runtime
