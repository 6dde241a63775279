#include "cohort/runtime/base/cpu_budget.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cohort/runtime/base/file_descriptor.h"

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

// Every rank reads this when it starts: whole files at once and no streams, which take three times as long.
std::string TextOf(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char part[4096];
  for (ssize_t got = 0; file.valid() && (got = read(file.get(), part, sizeof(part))) > 0;) {
    text.append(part, static_cast<size_t>(got));
  }
  return text;
}

// Returns the part of `text` before `end` and takes both away; all of it where there is no `end`.
std::string_view Take(std::string_view& text, char end) {
  const std::string_view part = text.substr(0, text.find(end));
  text.remove_prefix(std::min(text.size(), part.size() + 1));
  return part;
}

bool HasWord(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    if (Take(list, ',') == word) return true;
  }
  return false;
}

// A hierarchy of cgroups as it is mounted.
struct Mount {
  std::string root;   // the cgroup that is seen at `point`
  std::string point;  // where it is seen
  bool version_2 = false;
};

// Returns those with the CPU controller, as /proc says and, behind mounts that hide them, at their usual places.
std::vector<Mount> FindMounts(const std::string& root) {
  std::vector<Mount> mounts;
  const std::string file = TextOf(root + "proc/self/mountinfo");
  for (std::string_view rest = file; !rest.empty();) {
    std::string_view line = Take(rest, '\n');
    for (int skipped = 0; skipped < 3; ++skipped) Take(line, ' ');
    const std::string_view top = Take(line, ' ');
    const std::string_view point = Take(line, ' ');
    while (!line.empty() && Take(line, ' ') != "-") continue;
    const std::string_view type = Take(line, ' ');
    Take(line, ' ');
    const bool version_2 = type == "cgroup2";
    if (!version_2 && (type != "cgroup" || !HasWord(Take(line, ' '), "cpu"))) continue;
    mounts.push_back({std::string(top), std::string(point), version_2});
  }
  const auto add = [&mounts](const char* point, bool version_2) {
    const auto there = [&](const Mount& mount) { return mount.point == point && mount.version_2 == version_2; };
    if (std::none_of(mounts.begin(), mounts.end(), there)) mounts.push_back({"/", point, version_2});
  };
  for (const char* const point : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) add(point, true);
  for (const char* const point : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"}) {
    add(point, false);
  }
  return mounts;
}

// The own group's path, by the text of /proc/self/cgroup, in the hierarchy of version 2, the line "0::/a/b", and in
// that of the CPU controller of version 1, the line "4:cpu,cpuacct:/a/b"; "/" where nothing says.
std::string OwnPath(std::string_view groups, bool version_2) {
  while (!groups.empty()) {
    std::string_view line = Take(groups, '\n');
    Take(line, ':');
    const std::string_view controllers = Take(line, ':');
    if (!line.empty() && (version_2 ? controllers.empty() : HasWord(controllers, "cpu"))) return std::string(line);
  }
  return "/";
}

// `path` as it is seen where only `top` and what is below it are; empty: the top itself, also where it lies outside.
std::string BelowTop(const std::string& path, const std::string& top) {
  if (path.starts_with("/..")) return "";
  if (top == "/") return path == "/" ? "" : path;
  return path.starts_with(top + "/") ? path.substr(top.size()) : "";
}

// Returns the number that `text` begins with after blanks; nothing: there is none, or it is no quota ("max", -1).
std::optional<int64_t> PositiveNumber(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t")));
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number <= 0) return std::nullopt;
  return number;
}

// Returns the quota of one cgroup, in CPUs; nothing: it has none.
std::optional<double> QuotaOf(const std::string& folder, bool version_2) {
  std::string period_text;
  const std::string quota_text = TextOf(folder + (version_2 ? "/cpu.max" : "/cpu.cfs_quota_us"));
  const std::optional<int64_t> quota = PositiveNumber(quota_text);  // microseconds in a period
  if (!quota) return std::nullopt;
  if (version_2) {
    std::string_view fields = quota_text;
    Take(fields, ' ');
    period_text = fields;
  } else {
    period_text = TextOf(folder + "/cpu.cfs_period_us");
  }
  const std::optional<int64_t> period = PositiveNumber(period_text);
  if (!period) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

std::optional<int> CpusOfQuota(const std::string& root) {
  constexpr double kMost = 1 << 20;
  std::optional<double> least;
  const std::string groups = TextOf(root + "proc/self/cgroup");
  for (const Mount& mount : FindMounts(root)) {
    std::string path = BelowTop(OwnPath(groups, mount.version_2), mount.root);
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
  const int64_t mine = AffinityCpus();
  if (mine < local_ranks && mine * local_ranks > sysconf(_SC_NPROCESSORS_ONLN)) return true;
  return CpusOfQuota().value_or(local_ranks) < local_ranks;  // their cgroup is one
}

}  // namespace cohort::runtime
