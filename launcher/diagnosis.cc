#include "launcher/diagnosis.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <string_view>
#include <utility>

#include "launcher/options.h"

namespace cohort::launcher {
namespace {

constexpr char kRed[] = "\x1b[1;31m";
constexpr char kDim[] = "\x1b[2m";
constexpr char kPlain[] = "\x1b[0m";
constexpr size_t kMaxLineBytes = 2000;

// The bytes of a well-formed UTF-8 sequence at the start of `text` that is no control character, or 0.
size_t PrintableLength(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 && first <= 0xf4  ? 4
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xc2 && first < 0xe0 ? 2
                                                        : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  if (first == 0xc2 && second < 0xa0) return 0;  // C1 controls
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool outside = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  // U+202A..U+202E and U+2066..U+2069 turn the direction of what follows.
  const bool turns = first == 0xe2 && ((second == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae) ||
                                       (second == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9));
  return overlong || outside || turns ? 0 : length;
}

// Shows what would steer a terminal as "\x1b", and cuts what is too long.
std::string Shown(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string shown;
  const std::string_view taken = text.substr(0, kMaxLineBytes);
  for (size_t i = 0; i < taken.size();) {
    if (const size_t length = PrintableLength(taken.substr(i)); length > 0) {
      shown += taken.substr(i, length);
      i += length;
      continue;
    }
    const auto byte = static_cast<uint8_t>(taken[i++]);
    if (byte == '\t') {
      shown += "  ";
    } else {
      shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return taken.size() < text.size() ? shown + " ..." : shown;
}

const v1::RankExit* ExitOf(const v1::JobReport& report, int rank) {
  const auto found = std::find_if(report.exits().begin(), report.exits().end(),
                                  [rank](const v1::RankExit& exit) { return static_cast<int>(exit.rank()) == rank; });
  return rank < 0 || found == report.exits().end() ? nullptr : &*found;
}

// What such an end usually means, or empty.
std::string Hint(const v1::RankExit& exit, int status) {
  if (exit.lost() || exit.killed_by_us()) return "";
  if (!exit.started()) {
    if (status != kExitNotFound) return "";  // its error says what to do
    return "a program without a slash is looked up in PATH, then in the working directory, then beside dlaunch";
  }
  if (exit.passed_on())
    return "the program does not handle that signal, by which schedulers give notice of a preemption";
  switch (exit.signal()) {
    case SIGKILL:
      if (!exit.out_of_memory().empty()) {
        return "run fewer ranks on a node, lower what each needs, or raise the limit of the job's memory";
      }
      return "dlaunch did not send that signal: most often it is the kernel, out of memory (see dmesg), or a person";
    case SIGSEGV:
    case SIGBUS:
      return "an invalid memory access; a core file or a debugger shows where";
    case SIGABRT:
      return "the program ended itself (a failed assertion or an uncaught exception)";
    case SIGXCPU:
      return "the CPU time limit was reached (ulimit -t)";
    default:
      return "";
  }
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

}  // namespace

std::string FormatReport(const v1::JobReport& report, const DiagnosisOptions& options) {
  if (report.exit_code() == 0 && report.headline().empty()) return "";
  Text text(options.colour);
  text.Line("", "dlaunch: " + Shown(report.headline()), kRed);
  const v1::RankExit* culprit = ExitOf(report, report.culprit_rank());
  if (culprit != nullptr) {
    if (const std::string hint = Hint(*culprit, report.exit_code()); !hint.empty()) text.Line("  ", hint, kDim);
  }
  const std::string log = culprit != nullptr ? culprit->log_path() : "";
  const std::string whose =
      report.culprit_rank() >= 0 ? "rank " + std::to_string(report.culprit_rank()) : "the first rank that failed";
  if (report.last_lines_size() > 0) {
    text.Line("  ", "last lines of " + whose + (log.empty() ? "" : " (" + Shown(log) + ")") + ":");
    const int total = report.last_lines_size();
    const int shown = static_cast<int>(std::min(options.last_lines, static_cast<size_t>(total)));
    for (int i = total - shown; i < total; ++i) text.Line("    | ", Shown(report.last_lines(i)));
  } else if (!log.empty()) {
    text.Line("  ", whose + " printed nothing; its log: " + Shown(log));
  }
  if (report.others_size() > 0) {
    text.Line("  ", report.culprit_rank() >= 0 ? "the others:" : "the ranks:");
    const int shown = static_cast<int>(std::min(options.others, static_cast<size_t>(report.others_size())));
    for (int i = 0; i < shown; ++i) text.Line("    ", Shown(report.others(i)));
    if (shown < report.others_size()) {
      text.Line("    ", "and " + std::to_string(report.others_size() - shown) + " more");
    }
  }
  if (!report.not_restarted().empty()) text.Line("", "dlaunch: no restart: " + Shown(report.not_restarted()));
  if (options.final) text.Line("", "dlaunch: exit status " + std::to_string(report.exit_code()));
  return text.Take();
}

}  // namespace cohort::launcher
