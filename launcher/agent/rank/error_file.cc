#include "cohort/launcher/agent/rank/error_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace cohort::launcher {
namespace {

constexpr size_t kMaxBytes = 256 * 1024;
constexpr size_t kMaxLines = 200;  // the last ones, where the exception is
constexpr int kMaxDepth = 64;

using Json = nlohmann::json;

// The parser recurses: a rank could end its agent by many brackets.
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  for (const char character : text) {
    if (character == '[' || character == '{') ++depth;
    if (character == ']' || character == '}') --depth;
    if (depth > kMaxDepth) return true;
  }
  return false;
}

// The text at a key, or empty.
std::string TextAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

ErrorFile ErrorFile::Make() {
  ErrorFile file;
  file.memory_ = runtime::FileDescriptor(::memfd_create("cohort-error-file", MFD_CLOEXEC));
  return file;
}

std::string ErrorFile::path() const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory_.get());
}

std::vector<std::string> ErrorFile::Lines() const {
  struct stat facts{};
  if (!valid() || ::fstat(memory_.get(), &facts) != 0 || facts.st_size <= 0 ||
      facts.st_size > static_cast<off_t>(kMaxBytes)) {
    return {};
  }
  std::string text(static_cast<size_t>(facts.st_size), '\0');
  const ssize_t got = ::pread(memory_.get(), text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return LinesOfErrorFile(text);
}

std::vector<std::string> LinesOfErrorFile(const std::string& text) {
  if (NestsTooDeep(text)) return {};
  const Json whole = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!whole.is_object()) return {};
  std::string said = TextAt(whole, "message");
  if (const auto message = whole.find("message"); message != whole.end() && message->is_object()) {
    said = TextAt(*message, "message");
    if (const auto extra = message->find("extraInfo"); extra != message->end() && extra->is_object()) {
      const std::string stack = TextAt(*extra, "py_callstack");
      if (!stack.empty() && stack != "NoneType: None\n") said = stack;  // format_exc() without an exception
    }
  }
  std::vector<std::string> lines = absl::StrSplit(said, '\n', absl::SkipEmpty());
  if (lines.size() > kMaxLines) lines.erase(lines.begin(), lines.end() - kMaxLines);
  return lines;
}

}  // namespace cohort::launcher
