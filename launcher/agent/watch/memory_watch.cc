#include "cohort/launcher/agent/watch/memory_watch.h"

#include <fstream>
#include <string_view>

namespace cohort::launcher {
namespace {

// The number after "oom_kill " at the start of a line.
std::optional<uint64_t> KillsIn(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "oom_kill ";
    if (!line.starts_with(kKey)) continue;
    uint64_t count = 0;
    for (const char digit : line.substr(kKey.size())) {
      if (digit < '0' || digit > '9') break;
      count = count * 10 + static_cast<uint64_t>(digit - '0');
    }
    return count;
  }
  return std::nullopt;
}

// " (limit of its cgroup: 512 MiB)", or empty where there is none.
std::string LimitIn(const std::string& path) {
  constexpr uint64_t kNone = uint64_t{1} << 60;  // version 1 writes a number near 2^63
  uint64_t bytes = kNone;
  std::ifstream file(path);
  if (!(file >> bytes) || bytes >= kNone) return "";
  return " (limit of its cgroup: " + std::to_string(bytes >> 20) + " MiB)";
}

bool HasGrown(const std::optional<uint64_t>& before, const std::optional<uint64_t>& now) {
  return before.has_value() && now.has_value() && *now > *before;
}

}  // namespace

MemoryWatch::MemoryWatch(const std::string& root, const std::string& cgroup) : machine_file_(root + "proc/vmstat") {
  std::ifstream cgroups(root + "proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    const bool second_version = controllers.empty();
    if (!second_version && controllers != "memory") continue;
    const std::string folder = root + "sys/fs/cgroup" + (second_version ? "" : "/memory") + path + "/";
    const std::string counts = folder + (second_version ? "memory.events" : "memory.oom_control");
    if (!KillsIn(counts).has_value()) continue;
    cgroup_file_ = counts;
    limit_file_ = folder + (second_version ? "memory.max" : "memory.limit_in_bytes");
    if (second_version) break;
  }
  if (!cgroup.empty() && KillsIn(cgroup + "/memory.events").has_value()) {
    cgroup_file_ = cgroup + "/memory.events";
    if (!LimitIn(cgroup + "/memory.max").empty()) limit_file_ = cgroup + "/memory.max";  // else the one above limits
  }
  before_ = latest_ = Read();
}

MemoryWatch::Counts MemoryWatch::Read() const {
  return {cgroup_file_.empty() ? std::nullopt : KillsIn(cgroup_file_), KillsIn(machine_file_)};
}

void MemoryWatch::Look() {
  before_ = latest_;
  latest_ = Read();
}

std::string MemoryWatch::Verdict() const {
  const Counts now = Read();
  if (HasGrown(before_.cgroup, now.cgroup)) return "out of memory" + LimitIn(limit_file_);
  if (HasGrown(before_.machine, now.machine)) {
    return "most likely out of memory: the kernel killed a process for that at this moment";
  }
  return "";
}

}  // namespace cohort::launcher
