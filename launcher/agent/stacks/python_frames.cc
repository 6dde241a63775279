#include "cohort/launcher/agent/stacks/python_frames.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "absl/strings/str_split.h"

namespace cohort::launcher {
namespace {

constexpr size_t kInnermost = 2;
constexpr size_t kMaxPath = 160;
constexpr size_t kMaxFunction = 80;

std::vector<std::string> LinesOf(const std::string& dump) { return absl::StrSplit(dump, '\n', absl::SkipEmpty()); }

struct Header {
  uint64_t thread = 0;
  std::string_view rest;  // " (most recent call first):"
};

// "Current thread 0x00007f83d8f4c740 [name] (most recent call first):"
std::optional<Header> ReadHeader(std::string_view line) {
  const size_t at = line.find("hread 0x");
  if (at == std::string_view::npos || at > sizeof "Current " || line[0] == ' ') return std::nullopt;
  line.remove_prefix(at + std::string_view("hread ").size());
  const size_t end = line.find(' ');
  Header header;
  header.thread = std::strtoull(std::string(line.substr(0, end)).c_str(), nullptr, 16);
  header.rest = end == std::string_view::npos ? ":" : line.substr(end);
  return header;
}

struct Frame {
  std::string_view path, line, function;
};

// "  File "/x/train.py", line 30 in load_batch"
std::optional<Frame> ReadFrame(std::string_view text) {
  constexpr std::string_view kFile = "  File \"";
  constexpr std::string_view kLine = "\", line ";
  constexpr std::string_view kIn = " in ";
  if (!text.starts_with(kFile)) return std::nullopt;
  text.remove_prefix(kFile.size());
  const size_t line = text.rfind(kLine);
  if (line == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(line + kLine.size());
  const size_t in = rest.find(kIn);
  if (in == std::string_view::npos) return std::nullopt;
  return Frame{text.substr(0, line), rest.substr(0, in), rest.substr(in + kIn.size())};
}

bool IsLibrary(std::string_view path) {
  return path.find("/lib/python") != std::string_view::npos || path.find("-packages/") != std::string_view::npos ||
         path.starts_with("<frozen");
}

std::string Name(const Frame& frame) {
  std::string path(frame.path);
  if (path.size() > kMaxPath) path = "..." + path.substr(path.size() - kMaxPath);
  return path + ":" + std::string(frame.line.substr(0, 12)) + " in " +
         std::string(frame.function.substr(0, kMaxFunction));
}

}  // namespace

std::string ReadDump(const std::string& dump) {
  std::string text;
  for (const std::string& line : LinesOf(dump)) {
    if (const std::optional<Header> header = ReadHeader(line)) {
      text += "  Python thread" + std::string(header->rest) + "\n";
    } else {
      text += "    " + line + "\n";
    }
  }
  return text;
}

bool HasThread(const std::string& dump, uint64_t thread) {
  const std::vector<std::string> lines = LinesOf(dump);
  return std::any_of(lines.begin(), lines.end(), [thread](const std::string& line) {
    const std::optional<Header> header = ReadHeader(line);
    return header.has_value() && header->thread == thread;
  });
}

std::vector<std::string> InnermostFrames(const std::string& dump, uint64_t main_thread) {
  const std::vector<std::string> lines = LinesOf(dump);
  std::vector<Frame> frames;  // of the thread that is read
  bool found = false;
  for (const std::string& line : lines) {
    if (const std::optional<Header> header = ReadHeader(line)) {
      if (found) break;
      found = header->thread == main_thread;
      frames.clear();
    } else if (const std::optional<Frame> frame = ReadFrame(line)) {
      frames.push_back(*frame);
    }
  }
  std::vector<std::string> names;
  bool own = false;
  for (const Frame& frame : frames) {
    const bool is_own = !IsLibrary(frame.path);
    if (names.size() >= kInnermost && (own || !is_own)) continue;
    names.push_back(Name(frame));
    own |= is_own;
  }
  return names;
}

}  // namespace cohort::launcher
