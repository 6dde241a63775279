#include "cohort/launcher/front_end/held_output.h"

namespace cohort::launcher {

void HeldOutput::Keep(int fd, std::string_view line) {
  lines_ += static_cast<char>(fd);
  lines_ += line;
  if (lines_.size() > kMaxBytes) Release();
}

void HeldOutput::Release() {
  holding_ = false;
  for (size_t at = 0; at < lines_.size();) {
    const size_t end = lines_.find('\n', at) + 1;
    printer_->Print(lines_[at], std::string_view(lines_).substr(at + 1, end - at - 1));
    at = end;
  }
  lines_.clear();
}

}  // namespace cohort::launcher
