#include "cohort/launcher/agent/stacks/python_frames.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "cohort/launcher/base/printable.h"

namespace cohort::launcher {
namespace {

constexpr size_t kInnermost = 2;
constexpr size_t kMaxPath = 160;
constexpr size_t kMaxFunction = 80;

bool IsLibrary(std::string_view path) {
  return path.find("/lib/python") != std::string_view::npos || path.find("-packages/") != std::string_view::npos ||
         path.starts_with("<frozen");
}

std::string LineOf(const PythonFrame& frame) { return frame.line == 0 ? "?" : std::to_string(frame.line); }

std::string Name(const PythonFrame& frame) {
  std::string path = frame.file;
  if (path.size() > kMaxPath) path = "..." + path.substr(path.size() - kMaxPath);
  return Printable(path + ":" + LineOf(frame) + " in " + frame.function.substr(0, kMaxFunction));
}

std::string FormatThread(const PythonThread& thread) {
  std::string text = "  Python thread (most recent call first):\n";
  if (thread.frames.empty()) text += "      <no Python frame>\n";
  for (const PythonFrame& frame : thread.frames) {
    text += Printable("      File \"" + frame.file + "\", line " + LineOf(frame) + " in " + frame.function) + "\n";
  }
  return text + (thread.cut ? "      ...\n" : "");
}

const PythonThread* MainOf(const std::vector<PythonThread>& threads) {
  const auto main =
      std::find_if(threads.begin(), threads.end(), [](const PythonThread& thread) { return thread.is_main; });
  return main == threads.end() ? nullptr : &*main;
}

}  // namespace

std::string FormatThreads(const std::vector<PythonThread>& threads) {
  std::string text;
  for (const bool main : {true, false}) {
    for (const PythonThread& thread : threads) {
      if (thread.is_main == main) text += FormatThread(thread);
    }
  }
  return text;
}

std::vector<std::string> InnermostFrames(const std::vector<PythonThread>& threads) {
  std::vector<std::string> names;
  const PythonThread* const main = MainOf(threads);
  if (main == nullptr) return names;
  bool own = false;
  for (const PythonFrame& frame : main->frames) {
    const bool is_own = !IsLibrary(frame.file);
    if (names.size() >= kInnermost && (own || !is_own)) continue;
    names.push_back(Name(frame));
    own |= is_own;
  }
  return names;
}

std::string OwnFrame(const std::vector<PythonThread>& threads) {
  const PythonThread* const main = MainOf(threads);
  if (main == nullptr || main->frames.empty()) return "";
  const auto own = std::find_if(main->frames.begin(), main->frames.end(),
                                [](const PythonFrame& frame) { return !IsLibrary(frame.file); });
  return Name(own == main->frames.end() ? main->frames.front() : *own);
}

}  // namespace cohort::launcher
