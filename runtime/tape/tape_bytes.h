// The bytes of a tape. A file is kTapeMagic and then entries: one byte of TapeEntry, the length of the body, the body,
// and a hash of all that, of 4 bytes. Lengths and numbers have 7 bits a byte, the lowest first.
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
  kHead = 1,     // TapeHead
  kGroup = 2,    // index, id (8 bytes), size, members
  kSite = 3,     // index, CallRecord: the part of a call that does not change with each repetition
  kBegin = 4,    // TapeFlags, group, site, count, tag, hash of the input (2 bytes); with kUnequal: see PutCounts
  kResult = 5,   // how many calls have begun since the one that it belongs to; then the bytes that it got
  kCall = 6,     // kBegin, and at once the bytes that it got
  kFailure = 7,  // group, code, text: the group has failed
  kLookup = 8,   // TapeLookup
  kStep = 9,     // the step that Runtime::OnPreemption was asked about, and its answer: 0 or 1
  kEnd = 10,     // the rank has ended in order
};

// Flags of a call.
inline constexpr uint64_t kOtherThread = 1;  // another thread made the call before it
inline constexpr uint64_t kUnequal = 2;      // a variable-count form: counts follow

inline void PutNumber(uint64_t value, std::string* to) {
  for (; value >= 0x80; value >>= 7) to->push_back(static_cast<char>(value | 0x80));
  to->push_back(static_cast<char>(value));
}

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
