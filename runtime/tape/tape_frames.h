// Cuts a tape's file into entries, and checks them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "cohort/runtime/tape/running_check.h"
#include "cohort/runtime/tape/tape_bytes.h"

namespace cohort::runtime {

// Stands at an entry of the file. An entry of a call has no length: its reader takes the bytes that belong to it.
class TapeFrames {
 public:
  // Both outlive it. `name` is the file's, for errors.
  TapeFrames(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {}

  // kDataLoss: the file begins otherwise.
  absl::Status PassMagic();
  // The file has ended, in the middle of its first bytes.
  bool ends_in_magic() const { return TextOf(file_) == kTapeMagic.substr(0, file_.size()); }
  // Nothing follows, or only what a machine that stopped has left of a write.
  bool AtEnd();
  // The last entry was not written whole.
  bool cut() const { return cut_; }

  // Everything from the entry's first byte on.
  TapeBytes Rest() const { return TapeBytes(file_.subspan(at_)); }
  // Passes the entry if its check is right. It ends where `behind`, which came of Rest, stands, and `check_bytes` of
  // check follow. kDataLoss: it is damaged. It may be cut: see cut().
  absl::Status Pass(TapeBytes behind, size_t check_bytes);
  absl::Status Damaged(const std::string& why) const;

 private:
  absl::Status Cut(const std::string& why);

  const std::span<const std::byte> file_;
  const std::string& name_;
  size_t at_ = 0;
  RunningCheck check_;
  bool cut_ = false;
};

}  // namespace cohort::runtime
