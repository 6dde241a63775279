#include "cohort/runtime/segment/memory_limits.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace cohort::runtime {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

uint64_t MachineAvailable() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string unit;
  uint64_t total = 0;
  bool found = false;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == "MemAvailable:" || name == "SwapFree:") {
      total += kib * 1024;
      found = true;
    }
  }
  return found ? total : kUnknown;
}

bool ReadNumber(const std::string& path, uint64_t* value) {
  std::ifstream file(path);
  return static_cast<bool>(file >> *value);
}

// memory.max says "max" where there is no limit, which is no number.
uint64_t CgroupAvailable() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::string path;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) path = line.substr(3);
  }
  uint64_t available = kUnknown;
  while (!path.empty() && path != "/") {
    uint64_t limit = 0;
    uint64_t used = 0;
    if (ReadNumber("/sys/fs/cgroup" + path + "/memory.max", &limit) &&
        ReadNumber("/sys/fs/cgroup" + path + "/memory.current", &used)) {
      available = std::min(available, limit > used ? limit - used : 0);
    }
    path.resize(path.find_last_of('/'));
  }
  return available;
}

}  // namespace

uint64_t TotalMemory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t AvailableMemory() { return std::min(MachineAvailable(), CgroupAvailable()); }

}  // namespace cohort::runtime
