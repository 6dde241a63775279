#include "cohort/launcher/machine/cpus.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "cohort/runtime/base/cpu_budget.h"

namespace cohort::launcher {
namespace {

std::optional<int> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int value = 0;
  return file >> value ? std::optional<int>(value) : std::nullopt;
}

std::vector<int> AffinityMask() {
  // Machines with more CPUs than a cpu_set_t holds make the call fail with EINVAL: larger sets, then.
  for (int limit = CPU_SETSIZE; limit <= 1 << 16; limit *= 4) {
    cpu_set_t* set = CPU_ALLOC(limit);
    const size_t bytes = CPU_ALLOC_SIZE(limit);
    std::vector<int> cpus;
    if (::sched_getaffinity(0, bytes, set) == 0) {
      for (int cpu = 0; cpu < limit; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
    if (!cpus.empty()) return cpus;
  }
  return {0};
}

}  // namespace

std::vector<std::vector<int>> AvailableCores() {
  std::map<std::tuple<int, int, int>, std::vector<int>> cores;  // by package and core, or by the CPU itself
  for (const int cpu : AffinityMask()) {
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    const std::optional<int> core = ReadNumber(topology + "core_id");
    cores[{ReadNumber(topology + "physical_package_id").value_or(0), core.value_or(0), core ? -1 : cpu}].push_back(cpu);
  }
  std::vector<std::vector<int>> list;
  for (auto& [place, cpus] : cores) list.push_back(std::move(cpus));
  return list;
}

std::vector<int> AvailableCpus() {
  std::vector<int> cpus;
  for (const std::vector<int>& core : AvailableCores()) cpus.insert(cpus.end(), core.begin(), core.end());
  return cpus;
}

std::vector<std::vector<int>> Restrict(const std::vector<std::vector<int>>& groups, const std::vector<int>& cpus) {
  std::vector<std::vector<int>> kept;
  for (const std::vector<int>& group : groups) {
    std::vector<int> own;
    for (const int cpu : group) {
      if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) own.push_back(cpu);
    }
    if (!own.empty()) kept.push_back(std::move(own));
  }
  return kept;
}

int CpusWithinQuota(int cpus) { return std::max(1, std::min(cpus, runtime::CpusOfQuota().value_or(cpus))); }

int CpusToShare() { return CpusWithinQuota(static_cast<int>(AffinityMask().size())); }

int CpuShare(int own, int ranks, int to_share) {
  const int even = to_share / std::max(ranks, 1);
  return std::max(1, own > 0 ? std::min(own, even) : even);
}

}  // namespace cohort::launcher
