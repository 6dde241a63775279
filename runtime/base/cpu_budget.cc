#include "cohort/runtime/base/cpu_budget.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace cohort::runtime {
namespace {

int AffinityCpus() {
  // The kernel refuses sets smaller than its own; machines beyond 8192 CPUs do not exist yet.
  constexpr int kMaxCpus = 8192;
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  int count = 0;
  if (sched_getaffinity(0, bytes, set) == 0) count = CPU_COUNT_S(bytes, set);
  CPU_FREE(set);
  return std::max(1, count);
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A hierarchy of cgroups as it is mounted.
struct Mount {
  std::string root;   // the cgroup that is seen at `point`
  std::string point;  // where it is seen
  bool version_2 = false;
};

bool HasWord(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string one; std::getline(words, one, ',');) {
    if (one == word) return true;
  }
  return false;
}

// Returns those with the CPU controller, as /proc says and, behind mounts that hide them, at their usual places.
std::vector<Mount> FindMounts(const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, type, source, options;
    Mount mount;
    words >> word >> word >> word >> mount.root >> mount.point;
    while (words >> word && word != "-") continue;
    words >> type >> source >> options;
    mount.version_2 = type == "cgroup2";
    if (mount.version_2 || (type == "cgroup" && HasWord(options, "cpu"))) mounts.push_back(std::move(mount));
  }
  for (const char* const place : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) mounts.push_back({"/", place, true});
  for (const char* const place : {"cpu", "cpu,cpuacct", "cpuacct,cpu"}) {
    mounts.push_back({"/", std::string("/sys/fs/cgroup/") + place, false});
  }
  return mounts;
}

// The own group's path in the hierarchy of version 2, the line "0::/a/b", and in that of the CPU controller of version
// 1, the line "4:cpu,cpuacct:/a/b"; "/" where nothing says.
std::string OwnPath(const std::string& root, bool version_2) {
  std::ifstream file(root + "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version_2 ? controllers.empty() : HasWord(controllers, "cpu")) return line.substr(second + 1);
  }
  return "/";
}

// `path` as it is seen where only `top` and what is below it are; empty: the top itself, also where it lies outside.
std::string BelowTop(const std::string& path, const std::string& top) {
  if (path.starts_with("/..")) return "";
  if (top == "/") return path == "/" ? "" : path;
  return path.starts_with(top + "/") ? path.substr(top.size()) : "";
}

// Returns the quota of one cgroup, in CPUs; nothing: it has none.
std::optional<double> QuotaOf(const std::string& folder, bool version_2) {
  const std::string text =
      version_2 ? FirstLine(folder + "/cpu.max")
                : FirstLine(folder + "/cpu.cfs_quota_us") + " " + FirstLine(folder + "/cpu.cfs_period_us");
  std::istringstream fields(text);
  int64_t quota = 0, period = 0;  // microseconds in a period; "max" and -1 are no quota
  if (!(fields >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

}  // namespace

std::optional<int> CpusOfQuota(const std::string& root) {
  constexpr double kMost = 1 << 20;
  std::optional<double> least;
  for (const Mount& mount : FindMounts(root)) {
    std::string path = BelowTop(OwnPath(root, mount.version_2), mount.root);
    for (;;) {
      const std::optional<double> quota = QuotaOf(root + mount.point + path, mount.version_2);
      if (quota) least = std::min(least.value_or(*quota), *quota);
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  if (!least) return std::nullopt;
  return static_cast<int>(std::clamp(*least, 1.0, kMost));
}

int AvailableCpus() {
  const int affinity = AffinityCpus();
  return std::min(CpusOfQuota().value_or(affinity), affinity);
}

bool Oversubscribed(int local_ranks) {
  const std::optional<int> quota = CpusOfQuota();
  if (quota && *quota < local_ranks) return true;  // their cgroup is one
  const int64_t mine = AffinityCpus();
  if (mine >= local_ranks) return false;
  return mine * local_ranks > sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace cohort::runtime
