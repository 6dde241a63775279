#include "cohort/launcher/report/diagnosis.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/options/options.h"

namespace cohort::launcher {
namespace {

constexpr char kRed[] = "\x1b[1;31m";
constexpr char kDim[] = "\x1b[2m";
constexpr char kPlain[] = "\x1b[0m";
constexpr size_t kMaxLineBytes = 2000;

std::string Shown(std::string_view text) { return Printable(text, kMaxLineBytes); }

const v1::RankExit* ExitOf(const v1::JobReport& report, int rank) {
  const auto found = std::find_if(report.exits().begin(), report.exits().end(),
                                  [rank](const v1::RankExit& exit) { return static_cast<int>(exit.rank()) == rank; });
  return rank < 0 || found == report.exits().end() ? nullptr : &*found;
}

// Whether one of its last lines has both words.
bool SaidLast(const v1::JobReport& report, std::string_view words, std::string_view others = "") {
  return std::any_of(report.last_lines().begin(), report.last_lines().end(), [=](const std::string& line) {
    return line.find(words) != std::string::npos && line.find(others) != std::string::npos;
  });
}

// The usual cause of a signal, or empty.
std::string HintOfSignal(int signal, const v1::JobReport& report, const v1::RankExit& exit, bool cpu_time_limited) {
  switch (signal) {
    case SIGKILL:
      if (!exit.out_of_memory().empty()) {
        return "run fewer ranks on a node, lower what each needs, or raise the limit of the job's memory";
      }
      return std::string("dlaunch did not send that signal: most often it is the kernel, out of memory (see dmesg)") +
             (cpu_time_limited ? " or at the limit on CPU time (ulimit -t)" : "") + ", or a person";
    case SIGSEGV:
    case SIGBUS:
      return "an invalid memory access; a core file or a debugger shows where";
    case SIGABRT:
      if (SaidLast(report, "tcp_ep.c", "Assertion")) {
        return "UCX does that at a message that is none of its own: something else connects to the rank's port (a "
               "scanner, "
               "another job); see COHORT_PORT_RANGE, and close those ports to strangers";
      }
      return "the program ended itself (a failed assertion or an uncaught exception)";
    case SIGXCPU:
      return "the CPU time limit was reached (ulimit -t)";
    default:
      return "";
  }
}

// Explains what such an end usually means, or is empty.
std::string Hint(const v1::JobReport& report, const v1::RankExit& exit, bool cpu_time_limited) {
  if (exit.lost() || exit.killed_by_us()) return "";
  if (!exit.started()) {
    if (report.exit_code() != kExitNotFound) return "";  // its error says what to do
    return "a program without a slash is looked up in PATH, then in the working directory, then beside dlaunch";
  }
  if (exit.passed_on())
    return "the program does not handle that signal, by which schedulers give notice of a preemption";
  const int signal = LikelySignal(exit);
  if (signal == 0 && (SaidLast(report, "/dev/tty") || SaidLast(report, "EOFError: EOF when reading a line") ||
                      SaidLast(report, "GetPassWarning"))) {
    return "ranks have no terminal, and only rank 0 reads dlaunch's input: what is redirected, or with --stdin rank0 a "
           "terminal's too";
  }
  const std::string hint = HintOfSignal(signal, report, exit, cpu_time_limited);
  return hint.empty() || exit.signal() != 0 ? hint : "if so: " + hint;
}

// The lines that tell where the rank was when it was told to end; none where nothing is known, or its call tells as
// much.
std::vector<std::string> PlaceOf(const v1::RankExit& exit) {
  std::vector<std::string> lines;
  for (const std::string& frame : exit.frames()) lines.push_back((lines.empty() ? "" : "called from ") + Shown(frame));
  const bool in_call = exit.doing().present() && !exit.doing().done();
  if (lines.empty() && !in_call && !exit.state().empty()) lines.push_back(Shown(exit.state()));
  return lines;
}

struct Place {
  std::vector<std::string> lines;
  std::vector<uint32_t> ranks;
};

// The culprit's first, then those of few ranks, which stand out.
std::vector<Place> PlacesOf(const v1::JobReport& report) {
  std::map<std::vector<std::string>, std::vector<uint32_t>> ranks_at;
  for (const v1::RankExit& exit : report.exits()) {
    std::vector<std::string> lines = PlaceOf(exit);
    if (!lines.empty()) ranks_at[std::move(lines)].push_back(exit.rank());
  }
  std::vector<Place> places;
  for (auto& [lines, ranks] : ranks_at) places.push_back({lines, std::move(ranks)});
  const auto order = [&report](const Place& place) {
    const bool culprit = std::any_of(place.ranks.begin(), place.ranks.end(), [&report](uint32_t rank) {
      return static_cast<int>(rank) == report.culprit_rank();
    });
    return std::tuple(culprit ? size_t{0} : place.ranks.size(), place.ranks.front());
  };
  std::sort(places.begin(), places.end(), [&](const Place& a, const Place& b) { return order(a) < order(b); });
  return places;
}

class Text {
 public:
  explicit Text(bool colour) : colour_(colour) {}
  void Line(const std::string& indent, const std::string& text, const char* colour = nullptr) {
    const bool coloured = colour_ && colour != nullptr;
    text_ += indent + (coloured ? colour : "") + text + (coloured ? kPlain : "") + "\n";
  }
  std::string Take() { return std::move(text_); }

 private:
  const bool colour_;
  std::string text_;
};

// Whether the culprit's last words are in the lines that stand above: later lines of the other stream may have pushed
// them out of the newest ones.
bool WordsStandAbove(const v1::JobReport& report) {
  const auto begin = report.last_lines().end() - std::min<std::ptrdiff_t>(report.last_lines_size(), kNewestLines);
  return std::any_of(begin, report.last_lines().end(),
                     [&](const std::string& line) { return line.find(report.last_words()) != std::string::npos; });
}

// The culprit's last line need not be told again right below itself.
std::string HeadlineOf(const v1::JobReport& report, bool lines_stand_above) {
  std::string headline = report.headline();
  lines_stand_above = lines_stand_above && WordsStandAbove(report);
  const std::string last_line = LastLine(report.last_words());
  const size_t at = lines_stand_above && !last_line.empty() ? headline.find(last_line) : std::string::npos;
  if (at != std::string::npos) headline.erase(at, last_line.size());
  return headline;
}

void AddPlaces(const std::vector<Place>& places, size_t most, Text* text) {
  if (places.empty()) return;
  text->Line("  ", "when they were told to end:");
  size_t left_out = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    if (i >= most) {
      left_out += place.ranks.size();
      continue;
    }
    text->Line("    ", RankNames(place.ranks) + ": " + place.lines[0]);
    for (size_t line = 1; line < place.lines.size(); ++line) text->Line("      ", place.lines[line]);
  }
  if (left_out > 0) text->Line("    ", "and " + std::to_string(left_out) + " more elsewhere");
}

}  // namespace

std::string FormatReport(const v1::JobReport& report, const DiagnosisOptions& options) {
  if (report.exit_code() == 0 && report.headline().empty()) return "";
  Text text(options.colour);
  const v1::RankExit* culprit = ExitOf(report, report.culprit_rank());
  const std::string hint = culprit != nullptr ? Hint(report, *culprit, options.cpu_time_limited) : "";
  const std::vector<Place> places = PlacesOf(report);
  std::string log = culprit != nullptr ? culprit->log_path() : "";
  if (!options.told) {
    text.Line("", "dlaunch: " + Shown(HeadlineOf(report, options.lines_stand_above)), kRed);
  } else if (!hint.empty() || !log.empty() || (report.last_lines_size() > 0 && !options.lines_stand_above) ||
             report.others_size() > 0 || !places.empty()) {
    const bool of_one = report.culprit_rank() >= 0;
    text.Line("", std::string("dlaunch: more on the failure ") +
                      (of_one ? "of rank " + std::to_string(report.culprit_rank()) + " " : "") + "that is told above:");
  }
  if (!hint.empty()) text.Line("  ", hint, kDim);
  // Lines of both streams are told, and a shell makes two names of this.
  if (absl::EndsWith(log, ".err")) log = absl::StrCat(log.substr(0, log.size() - 3), "{out,err}");
  const std::string whose =
      report.culprit_rank() >= 0 ? "rank " + std::to_string(report.culprit_rank()) : "the first rank that failed";
  if (report.last_lines_size() > 0 && options.lines_stand_above) {
    if (!log.empty()) text.Line("  ", "log of " + whose + ": " + Shown(log));
  } else if (report.last_lines_size() > 0) {
    text.Line("  ", "last lines of " + whose + (log.empty() ? "" : " (" + Shown(log) + ")") + ":");
    const int total = report.last_lines_size();
    const int shown = static_cast<int>(std::min(options.last_lines, static_cast<size_t>(total)));
    for (int i = total - shown; i < total; ++i) text.Line("    | ", Shown(report.last_lines(i)));
  } else if (!log.empty()) {
    text.Line("  ", whose + " printed nothing; its log: " + Shown(log));
  }
  AddPlaces(places, options.places, &text);
  if (report.others_size() > 0) {
    text.Line("  ", report.culprit_rank() >= 0 ? "the others:" : "the ranks:");
    const int shown = static_cast<int>(std::min(options.others, static_cast<size_t>(report.others_size())));
    for (int i = 0; i < shown; ++i) text.Line("    ", Shown(report.others(i)));
    const size_t left_out = static_cast<size_t>(report.others_size() - shown) + report.others_left_out();
    if (left_out > 0) text.Line("    ", "and " + std::to_string(left_out) + " more");
  }
  if (!report.not_restarted().empty()) text.Line("", "dlaunch: no restart: " + Shown(report.not_restarted()));
  return text.Take();
}

}  // namespace cohort::launcher
