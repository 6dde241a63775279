#include "cohort/launcher/agent/rank/line_splitter.h"

#include <algorithm>

namespace cohort::launcher {

void LineSplitter::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t take = std::min(std::min(newline, bytes.size()), kMaxLineBytes - held_.size());
    const bool ends = take == newline;
    const bool returns =
        returns_ == Returns::kBeginAnew && take > 1 && bytes.substr(0, take - 1).find('\r') != std::string_view::npos;
    if (held_.empty() && !returns && (ends || take == kMaxLineBytes)) {
      Give(bytes.substr(0, take), !ends);
    } else {
      held_.append(bytes.substr(0, take));
      DropOverwritten();
      if (ends || held_.size() == kMaxLineBytes) {
        Give(held_, !ends);
        held_.clear();
      }
    }
    bytes.remove_prefix(take + (ends ? 1 : 0));
  }
}

void LineSplitter::Give(std::string_view text, bool partial) {
  sink_(text, partial);
  given_ = partial;
  overwrote_ = false;
}

void LineSplitter::DropOverwritten() {
  if (returns_ == Returns::kKeep) return;
  const size_t end = held_.find_last_not_of('\r');  // a return overwrites nothing by itself
  if (end == std::string::npos) return;
  const size_t last = held_.rfind('\r', end);
  if (last == std::string::npos) return;
  if (given_) Give(std::string_view(held_).substr(0, held_.find('\r')), false);
  held_.erase(0, last + 1);
  overwrote_ = true;
}

std::string_view LineSplitter::progress() const {
  if (returns_ == Returns::kKeep || (!overwrote_ && !held_.ends_with('\r'))) return "";
  return std::string_view(held_).substr(0, held_.find_last_not_of('\r') + 1);
}

void LineSplitter::PassOnText() {
  if (!holds_text()) return;
  Give(held_, true);
  held_.clear();
}

void LineSplitter::Finish() {
  if (!held_.empty()) Give(held_, true);
  held_.clear();
  given_ = false;
}

}  // namespace cohort::launcher
