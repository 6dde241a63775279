// The latest lines of ranks that stand above dlaunch's own words, so that a report need not repeat them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cohort/launcher/front_end/held_output.h"

namespace cohort::launcher {

class ScreenLines {
 public:
  // `output_beside_error`: the standard output goes where the standard error goes. Otherwise its lines stand elsewhere,
  // and are not counted.
  explicit ScreenLines(bool output_beside_error) : output_beside_error_(output_beside_error) {}

  void Add(const RankLine& line);
  // Whether the newest of `lines` (oldest first) of the rank are among the last 24 rows, in that order. With rank -1
  // they may be any one rank's. Lines may be cut at their end.
  bool Show(int rank, const std::vector<std::string>& lines) const;
  // An epoch is over: what its ranks have printed is not the next one's.
  void Clear() { lines_.clear(); }

 private:
  static constexpr size_t kRows = 24;
  static constexpr size_t kColumns = 100;
  static constexpr size_t kNewest = 5;
  static constexpr size_t kCutAfter = 2000;  // bytes that an agent remembers of a line

  static size_t RowsOf(const RankLine& line) { return 1 + line.text.size() / kColumns; }
  bool ShowOf(uint32_t rank, const std::vector<std::string>& lines) const;

  const bool output_beside_error_;
  std::deque<RankLine> lines_;  // oldest first, kRows of them at most
};

// Whether descriptors 1 and 2 of this process are one terminal, pipe or file.
bool OutputIsBesideError();

}  // namespace cohort::launcher
