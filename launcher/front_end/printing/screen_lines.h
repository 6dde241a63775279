// The latest lines of ranks that stand above dlaunch's own words, so that a report need not repeat them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/lines/shortened_line.h"
#include "cohort/launcher/front_end/printing/held_output.h"
#include "cohort/launcher/report/diagnosis.h"

namespace cohort::launcher {

class ScreenLines {
 public:
  // `output_beside_error`: the standard output goes where the standard error goes. Otherwise its lines stand elsewhere,
  // and are not counted.
  explicit ScreenLines(bool output_beside_error) : output_beside_error_(output_beside_error) {}

  // A line, or the next part of one, that is printed.
  void Add(const RankLine& line);
  // Whether the kNewestLines last of `lines` (oldest first) of the rank are among the last 24 rows, in that order. With
  // rank -1 they may be any one rank's. Long ones are shortened as an agent does it.
  bool Show(int rank, const std::vector<std::string>& lines) const;
  // An epoch is over: what its ranks have printed is not the next one's.
  void Clear();

 private:
  static constexpr size_t kRows = 24;
  static constexpr size_t kColumns = 100;
  struct Line {
    uint32_t rank = 0;
    std::string text;
    size_t rows = 1;
  };

  bool ShowOf(uint32_t rank, const std::vector<std::string>& lines) const;

  const bool output_beside_error_;
  std::deque<Line> lines_;                                        // oldest first, kRows of them at most
  std::map<std::pair<uint32_t, int>, ShortenedLine> unfinished_;  // by rank and descriptor
};

// Whether descriptors 1 and 2 of this process are one terminal, pipe or file.
bool OutputIsBesideError();

}  // namespace cohort::launcher
