// Puts the lines of all ranks, and dlaunch's own, on the two streams: a line of one never begins within a line of
// another.
//
//   while a rank's line is unfinished   others' lines wait until it ends, for a moment at the most
//   after that moment                   the line is left: a newline, and what comes of it later begins with its prefix
//
// Without prefixes nothing is added to what ranks print, except on a terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/front_end/printing/held_output.h"
#include "cohort/launcher/front_end/printing/output_printer.h"
#include "cohort/launcher/front_end/printing/screen_lines.h"

namespace cohort::launcher {

class LineTurns {
 public:
  static constexpr std::chrono::milliseconds kPatience{100};       // with an unfinished line, such as a prompt
  static constexpr std::chrono::milliseconds kLongPatience{1000};  // with a long one, since its latest long part
  static constexpr size_t kLong = 4u << 10;  // of a line since its latest return, or of a part: no prompt, no bar
  static constexpr size_t kMostWaiting = 4u << 20;  // bytes; then the unfinished line is left at once

  struct Surroundings {
    bool prefix = true;
    bool output_beside_error = false;           // descriptors 1 and 2 go to one place
    bool terminals[3] = {false, false, false};  // by descriptor
    // Looks at this process.
    static Surroundings Find(bool prefix);
  };
  // All must outlive this.
  LineTurns(EventLoop* loop, OutputPrinter* printer, const Surroundings& surroundings);
  ~LineTurns();
  LineTurns(const LineTurns&) = delete;
  LineTurns& operator=(const LineTurns&) = delete;

  // Prints a line of a rank, or a part of one, now or when it is its turn.
  void Print(RankLine line);
  // Prints whole lines of dlaunch's own on the standard error, after all that waits for that place.
  void Say(std::string_view lines);
  // The same for one line of any text, with dlaunch's name before it.
  void Announce(std::string_view text);
  // Prints all that waits.
  void Flush();
  // A user has ended a line on the terminal from which the standard input comes: its echo has begun a new one.
  void OnEcho();

  // The ranks' lines as they stand there. Without prefixes none is known.
  ScreenLines& screen() { return screen_; }

 private:
  using Writer = std::pair<uint32_t, int>;  // a rank, and the descriptor that it means

  // The terminal, pipe or file to which one or both of the streams go.
  struct Place {
    std::optional<Writer> turn;    // its line is unfinished, and others wait
    std::optional<Writer> latest;  // who has written the latest text there
    bool in_line = false;          // what stands there last is no newline
    std::deque<RankLine> waiting;  // none of whose turn it is
    size_t waiting_bytes = 0;
    size_t line_bytes = 0;  // of the unfinished line, since its latest return
    EventLoop::TimerId timer = 0;
  };

  Place& PlaceOf(int fd) { return places_[surroundings_.output_beside_error ? 0 : fd - 1]; }
  bool MustWait(const Place& place, const RankLine& line) const;
  void Write(Place* place, const RankLine& line);
  // Leaves the unfinished line, and lets others go on.
  void Leave(Place* place);
  void LetWaitingGoOn(Place* place);
  void FlushPlace(Place* place);
  void AwaitRest(Place* place);

  EventLoop* loop_;
  OutputPrinter* printer_;
  const Surroundings surroundings_;
  ScreenLines screen_;
  Place places_[2];
  std::set<Writer> left_;  // whose unfinished line was left: its end, if it is all that comes, stands there already
};

}  // namespace cohort::launcher
