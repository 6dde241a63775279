#include "cohort/launcher/front_end/printing/held_output.h"

namespace cohort::launcher {

void HeldOutput::Keep(RankLine line) {
  bytes_ += sizeof line + line.text.size();
  lines_.push_back(std::move(line));
  if (bytes_ > kMaxBytes) Release();
}

void HeldOutput::Release() {
  holding_ = false;
  bytes_ = 0;
  for (const RankLine& line : std::exchange(lines_, {})) print_(line);
}

void HeldOutput::ReleaseOf(uint32_t rank) {
  for (const RankLine& line : lines_) {
    if (line.rank != rank) continue;
    bytes_ -= sizeof line + line.text.size();
    print_(line);
  }
  std::erase_if(lines_, [rank](const RankLine& line) { return line.rank == rank; });
}

}  // namespace cohort::launcher
