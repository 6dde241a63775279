#include "cohort/launcher/control/parts/python_exception.h"

#include <cctype>
#include <cstddef>
#include <string_view>

namespace cohort::launcher {
namespace {

struct Frame {
  std::string_view file;
  std::string_view line;
};

size_t Digits(std::string_view text) {
  size_t digits = 0;
  while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits])) != 0) ++digits;
  return digits;
}

// The line without torch.distributed's "[rank2]: ".
std::string_view WithoutRank(std::string_view line) {
  constexpr std::string_view kBegin = "[rank", kEnd = "]: ";
  if (!line.starts_with(kBegin)) return line;
  const size_t digits = Digits(line.substr(kBegin.size()));
  const std::string_view rest = line.substr(kBegin.size() + digits);
  return digits > 0 && rest.starts_with(kEnd) ? rest.substr(kEnd.size()) : line;
}

// `  File "/a/train.py", line 12, in main`
std::optional<Frame> ReadFrame(std::string_view text) {
  constexpr std::string_view kFile = "  File \"", kLine = "\", line ";
  if (!text.starts_with(kFile)) return std::nullopt;
  text.remove_prefix(kFile.size());
  const size_t end = text.find(kLine);
  if (end == std::string_view::npos) return std::nullopt;
  Frame frame;
  frame.file = text.substr(0, end);
  text.remove_prefix(end + kLine.size());
  frame.line = text.substr(0, Digits(text));
  return frame.line.empty() ? std::nullopt : std::optional(frame);
}

// "ValueError: text", "torch.OutOfMemoryError", "KeyboardInterrupt", "net.build.<locals>.Late: text"
bool IsException(std::string_view text) {
  const auto names = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_.<>").find(c) != std::string_view::npos;
  };
  size_t end = 0;
  while (end < text.size() && names(text[end])) ++end;
  return end > 0 && (std::isalpha(static_cast<unsigned char>(text[0])) != 0 || text[0] == '_') &&
         (end == text.size() || text.substr(end).starts_with(": "));
}

bool IsInstalled(std::string_view file) {
  return file.starts_with('<') || file.find("-packages/") != std::string_view::npos ||
         file.find("/lib/python3") != std::string_view::npos;
}

std::string Place(const Frame& frame) {
  if (frame.file.starts_with('<')) return "";  // "<string>", "<stdin>"
  return std::string(frame.file.substr(frame.file.find_last_of('/') + 1)) + ":" + std::string(frame.line);
}

}  // namespace

std::optional<PythonException> FindPythonException(const std::vector<std::string>& lines) {
  constexpr size_t kMaxBytes = 400;
  std::optional<PythonException> found;
  std::optional<Frame> innermost, own;
  bool ignored = false;  // of a destructor, a callback or another place that has no caller: the program goes on
  for (const std::string& whole : lines) {
    const std::string_view line = WithoutRank(whole);
    if (line.starts_with("Exception ignored in")) {
      ignored = true;
    } else if (const std::optional<Frame> frame = ReadFrame(line)) {
      innermost = frame;
      if (!IsInstalled(frame->file)) own = frame;
    } else if (innermost && !line.empty() && line[0] != ' ') {  // source lines and the marks below them are indented
      if (IsException(line) && !ignored) {
        found = {std::string(line.substr(0, kMaxBytes)), Place(own.value_or(*innermost))};
      }
      innermost = own = std::nullopt;
      ignored = false;
    }
  }
  return found;
}

}  // namespace cohort::launcher
