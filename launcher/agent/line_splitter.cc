#include "launcher/agent/line_splitter.h"

#include <algorithm>

namespace cohort::launcher {

void LineSplitter::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t take = std::min(std::min(newline, bytes.size()), kMaxLineBytes - held_.size());
    const bool ends = take == newline;
    if (held_.empty() && (ends || take == kMaxLineBytes)) {
      sink_(bytes.substr(0, take), !ends);
    } else {
      held_.append(bytes.substr(0, take));
      if (ends || held_.size() == kMaxLineBytes) {
        sink_(held_, !ends);
        held_.clear();
      }
    }
    bytes.remove_prefix(take + (ends ? 1 : 0));
  }
}

void LineSplitter::Finish() {
  if (!held_.empty()) sink_(held_, true);
  held_.clear();
}

}  // namespace cohort::launcher
