#include "cohort/launcher/agent/rank/line_splitter.h"

#include <algorithm>

namespace cohort::launcher {

void LineSplitter::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t take = std::min(std::min(newline, bytes.size()), kMaxLineBytes - held_.size());
    const bool ends = take == newline;
    const bool returns = take > 1 && bytes.substr(0, take - 1).find('\r') != std::string_view::npos;
    if (held_.empty() && !returns && (ends || take == kMaxLineBytes)) {
      sink_(bytes.substr(0, take), !ends);
    } else {
      held_.append(bytes.substr(0, take));
      DropOverwritten();
      if (ends || held_.size() == kMaxLineBytes) {
        sink_(held_, !ends);
        held_.clear();
        overwrote_ = false;
      }
    }
    bytes.remove_prefix(take + (ends ? 1 : 0));
  }
}

void LineSplitter::DropOverwritten() {
  const size_t end = held_.find_last_not_of('\r');  // a return overwrites nothing by itself
  if (end == std::string::npos) return;
  const size_t last = held_.rfind('\r', end);
  if (last == std::string::npos) return;
  held_.erase(0, last + 1);
  overwrote_ = true;
}

std::string_view LineSplitter::progress() const {
  if (!overwrote_ && !held_.ends_with('\r')) return "";
  return std::string_view(held_).substr(0, held_.find_last_not_of('\r') + 1);
}

void LineSplitter::Finish() {
  if (!held_.empty()) sink_(held_, true);
  held_.clear();
  overwrote_ = false;
}

}  // namespace cohort::launcher
