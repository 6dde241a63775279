// The last lines that a rank has printed on both streams, for the report of its failure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/launcher/agent/lines/shortened_line.h"

namespace cohort::launcher {

class LastLines {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kLines = 60;           // a Python traceback has three for each call
  static constexpr size_t kLinesOfError = 10;    // of the standard error, at least where it has as many
  static constexpr size_t kLineBytes = 2000;     // of each line, shortened in the middle
  static constexpr size_t kWordsBytes = 300;     // of Words, shortened too
  static constexpr size_t kBacklogBytes = 4096;  // more than what comes together by chance

  // The next bytes of one stream. `other_waits`: bytes that lie unread in the other one's pipe. If these are many, they
  // were printed before.
  void Append(bool is_error, std::string_view bytes, size_t other_waits, Clock::time_point now = Clock::now());
  // Forgets all: the rank lives on in another epoch, or as another rank.
  void Clear();

  // The lines in the order of their printing as far as it is known, unfinished ones too.
  std::vector<std::string> Lines() const;
  // The last line that says something: of the standard error, unless that is a log or the standard output's is clearly
  // later. An uncaught exception of C++ comes first, and a progress bar never. Empty: there is none.
  std::string Words() const;

 private:
  // Programs flush their standard output when they end, after their last words on the standard error.
  static constexpr std::chrono::seconds kTogether{1};

  struct Line {
    std::string text;
    bool drawn_over = false;
    uint64_t place = 0;           // in what both streams have printed
    uint64_t end_of_backlog = 0;  // the end of what waited in the other stream, however little
    bool is_behind = false;       // a backlog of the other stream
    Clock::time_point at;
  };
  struct Stream {
    Line Unfinished() const;

    std::deque<Line> lines;
    ShortenedLine open{kLineBytes};
    Line latest;  // of the latest bytes, without a text
  };

  static const Line* LastThatSays(const std::vector<Line>& lines, std::string* words);
  std::vector<Line> LinesOf(const Stream& stream) const;

  Stream streams_[2];  // standard output, standard error
  uint64_t printed_ = 0;
};

}  // namespace cohort::launcher
