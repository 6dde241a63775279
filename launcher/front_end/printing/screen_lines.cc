#include "cohort/launcher/front_end/printing/screen_lines.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "cohort/launcher/agent/lines/last_lines.h"

namespace cohort::launcher {

void ScreenLines::Add(const RankLine& line) {
  if (line.fd != STDERR_FILENO && !output_beside_error_) return;
  const auto key = std::pair(line.rank, line.fd);
  ShortenedLine& whole = unfinished_.try_emplace(key, LastLines::kLineBytes).first->second;
  whole.Append(line.text);
  if (line.goes_on) return;
  lines_.push_back({line.rank, whole.Text(), 1 + whole.length() / kColumns});
  unfinished_.erase(key);
  if (lines_.size() > kRows) lines_.pop_front();
}

void ScreenLines::Clear() {
  lines_.clear();
  unfinished_.clear();
}

bool ScreenLines::Show(int rank, const std::vector<std::string>& lines) const {
  if (lines.empty()) return false;
  if (rank >= 0) return ShowOf(static_cast<uint32_t>(rank), lines);
  std::set<uint32_t> ranks;
  for (const Line& line : lines_) ranks.insert(line.rank);
  return std::any_of(ranks.begin(), ranks.end(), [&](uint32_t one) { return ShowOf(one, lines); });
}

bool ScreenLines::ShowOf(uint32_t rank, const std::vector<std::string>& lines) const {
  auto wanted = lines.rbegin();
  const auto end = lines.rbegin() + static_cast<std::ptrdiff_t>(std::min<size_t>(lines.size(), kNewestLines));
  size_t rows = 0;
  for (auto line = lines_.rbegin(); line != lines_.rend() && wanted != end; ++line) {
    rows += line->rows;
    if (rows > kRows) return false;
    if (line->rank != rank) continue;
    if (line->text != *wanted) return false;
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
