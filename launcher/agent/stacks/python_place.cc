#include "cohort/launcher/agent/stacks/python_place.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "cohort/launcher/agent/stacks/loaded_symbols.h"

namespace cohort::launcher {
namespace {

constexpr char kRuntime[] = "_PyRuntime";
constexpr char kVersion[] = "Py_Version";  // from 3.11 on

// "python3.11" and "libpython3.11.so.1.0" are 3.11.
uint64_t VersionInName(const std::string& path) {
  constexpr char kWord[] = "python3.";
  const size_t at = path.rfind(kWord);
  if (at == std::string::npos) return 0;
  const long minor = std::strtol(path.c_str() + at + sizeof kWord - 1, nullptr, 10);
  return minor > 0 && minor < 100 ? 0x03000000u | static_cast<uint64_t>(minor) << 16 : 0;
}

// A file that may be a Python.
struct Candidate {
  uint64_t begin = 0;  // where the process has its beginning
  bool named = false;  // as a Python is
};

std::map<std::string, Candidate> CandidatesOf(pid_t pid) {
  std::map<std::string, Candidate> found;
  const std::string folder = "/proc/" + std::to_string(pid);
  std::array<char, 4096> target{};
  const ssize_t length = ::readlink((folder + "/exe").c_str(), target.data(), target.size());
  const std::string program(target.data(), length < 0 ? 0 : static_cast<size_t>(length));
  std::ifstream maps(folder + "/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, access, offset, device, inode, path;
    words >> range >> access >> offset >> device >> inode >> std::ws;
    std::getline(words, path);
    if (path.empty() || path[0] != '/' || std::strtoull(offset.c_str(), nullptr, 16) != 0) continue;
    const std::string name = path.substr(path.rfind('/') + 1);
    const bool named = name.starts_with("python") || name.starts_with("libpython");
    if (named || path == program) found.emplace(path, Candidate{std::strtoull(range.c_str(), nullptr, 16), named});
  }
  return found;
}

}  // namespace

std::optional<PythonPlace> FindPython(pid_t pid, const ProcessMemory& memory) {
  if (!memory.valid()) return std::nullopt;
  for (const auto& [path, candidate] : CandidatesOf(pid)) {
    const std::optional<uint64_t> runtime = FindLoadedSymbol(memory, candidate.begin, kRuntime);
    if (!runtime) continue;
    PythonPlace place{.runtime = *runtime, .version = VersionInName(path)};
    if (const auto version = FindLoadedSymbol(memory, candidate.begin, kVersion)) {
      place.version = memory.Get<uint64_t>(*version).value_or(place.version);
    }
    return place;
  }
  return std::nullopt;
}

bool RunsPython(pid_t pid) {
  const std::map<std::string, Candidate> candidates = CandidatesOf(pid);
  return std::any_of(candidates.begin(), candidates.end(), [](const auto& one) { return one.second.named; });
}

}  // namespace cohort::launcher
