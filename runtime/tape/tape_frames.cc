#include "cohort/runtime/tape/tape_frames.h"

#include <algorithm>
#include <cstring>

#include "cohort/runtime/tape/memory_hash.h"

namespace cohort::runtime {
namespace {

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

// Whether the last bytes look as if the rank had ended in order.
bool EndsInOrder(std::span<const std::byte> file) {
  const size_t bytes = kTapeEnd.size() + kCheckBytes;
  return file.size() >= bytes && TextOf(file.last(bytes).first(kTapeEnd.size())) == kTapeEnd;
}

}  // namespace

absl::Status TapeFrames::PassMagic() {
  if (file_.size() >= kTapeMagic.size() && TextOf(file_.first(kTapeMagic.size())) == kTapeMagic) {
    at_ = kTapeMagic.size();
    return absl::OkStatus();
  }
  return Damaged(file_.empty() ? "it is empty" : "it does not begin as a tape does");
}

bool TapeFrames::AtEnd() {
  const std::span<const std::byte> rest = file_.subspan(at_);
  if (rest.empty()) return true;
  cut_ = AllZero(rest);
  return cut_;
}

absl::Status TapeFrames::Pass(TapeBytes behind, size_t check_bytes) {
  if (behind.failed()) return Cut("an entry reaches beyond the end");
  const size_t end = file_.size() - behind.left();
  const std::span<const std::byte> check = behind.Bytes(check_bytes);
  if (behind.failed()) return Cut("an entry reaches beyond the end");
  RunningCheck running = check_;
  const uint32_t right = running.Add(HashMemory(file_.data() + at_, end - at_));
  if (std::memcmp(check.data(), &right, check_bytes) != 0) {
    return AllZero(behind.Rest()) ? Cut("the last entry is not what was written")
                                  : Damaged("an entry is not what was written");
  }
  check_ = running;
  at_ = end + check_bytes;
  return absl::OkStatus();
}

absl::Status TapeFrames::Damaged(const std::string& why) const {
  return absl::DataLossError("the tape " + name_ + " is damaged at byte " + std::to_string(at_) +
                             " or shortly before: " + why +
                             "; copy it again from where it was recorded, or record it again");
}

// Only a killed process leaves such an end.
absl::Status TapeFrames::Cut(const std::string& why) {
  if (EndsInOrder(file_)) return Damaged(why);
  cut_ = true;
  return absl::OkStatus();
}

}  // namespace cohort::runtime
