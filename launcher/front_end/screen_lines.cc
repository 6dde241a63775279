#include "cohort/launcher/front_end/screen_lines.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

namespace cohort::launcher {

void ScreenLines::Add(const RankLine& line) {
  if (line.fd != STDERR_FILENO && !output_beside_error_) return;
  lines_.push_back(line);
  if (lines_.size() > kRows) lines_.pop_front();
}

bool ScreenLines::Show(int rank, const std::vector<std::string>& lines) const {
  if (lines.empty()) return false;
  if (rank >= 0) return ShowOf(static_cast<uint32_t>(rank), lines);
  std::set<uint32_t> ranks;
  for (const RankLine& line : lines_) ranks.insert(line.rank);
  return std::any_of(ranks.begin(), ranks.end(), [&](uint32_t one) { return ShowOf(one, lines); });
}

bool ScreenLines::ShowOf(uint32_t rank, const std::vector<std::string>& lines) const {
  auto wanted = lines.rbegin();
  const auto end = lines.rbegin() + static_cast<std::ptrdiff_t>(std::min(lines.size(), kNewest));
  size_t rows = 0;
  for (auto line = lines_.rbegin(); line != lines_.rend() && wanted != end; ++line) {
    rows += RowsOf(*line);
    if (rows > kRows) return false;
    if (line->rank != rank) continue;
    const bool cut = wanted->size() >= kCutAfter;
    if (cut ? !line->text.starts_with(*wanted) : line->text != *wanted) return false;
    ++wanted;
  }
  return wanted == end;
}

bool OutputIsBesideError() {
  struct stat output{}, error{};
  return ::fstat(STDOUT_FILENO, &output) == 0 && ::fstat(STDERR_FILENO, &error) == 0 && output.st_dev == error.st_dev &&
         output.st_ino == error.st_ino;
}

}  // namespace cohort::launcher
