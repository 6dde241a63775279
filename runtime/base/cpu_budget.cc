#include "cohort/runtime/base/cpu_budget.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

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

// The own group's path in the v2 hierarchy: the line "0::/a/b".
std::string CgroupPath() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) return line.substr(3);
  }
  return "";
}

int QuotaCpus() {
  int cpus = 0;
  const auto limit = [&cpus](int other) {
    if (other > 0) cpus = cpus == 0 ? other : std::min(cpus, other);
  };
  std::string path = CgroupPath();
  while (!path.empty() && path != "/") {
    limit(CpusOfQuota(FirstLine("/sys/fs/cgroup" + path + "/cpu.max")));
    path.resize(path.find_last_of('/'));
  }
  limit(CpusOfQuota(FirstLine("/sys/fs/cgroup/cpu.max")));
  const std::string quota = FirstLine("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const std::string period = FirstLine("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  limit(CpusOfQuota(quota + " " + period));
  return cpus;
}

}  // namespace

int CpusOfQuota(const std::string& text) {
  std::istringstream fields(text);
  int64_t quota = 0;
  int64_t period = 0;
  if (!(fields >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min<int64_t>((quota + period - 1) / period, 1 << 20));
}

int AvailableCpus() {
  const int quota = QuotaCpus();
  const int affinity = AffinityCpus();
  return quota > 0 ? std::min(quota, affinity) : affinity;
}

bool Oversubscribed(int local_ranks) {
  const int64_t mine = AvailableCpus();
  if (mine >= local_ranks) return false;
  return mine * local_ranks > sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace cohort::runtime
