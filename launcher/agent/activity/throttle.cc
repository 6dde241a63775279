#include "cohort/launcher/agent/activity/throttle.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cohort/launcher/agent/stacks/kernel_file.h"
#include "cohort/launcher/agent/watch/cgroup.h"

namespace cohort::launcher {
namespace {

constexpr int kMostLevels = 32;

bool HasLimit(const std::string& folder, CgroupVersion version) {
  if (version == CgroupVersion::kFirst) return std::atoll(ReadKernelFile(folder + "/cpu.cfs_quota_us").c_str()) > 0;
  const std::string limit = ReadKernelFile(folder + "/cpu.max");
  return !limit.empty() && !limit.starts_with("max");
}

}  // namespace

Throttle::Throttle(pid_t process, const std::string& root) {
  for (const CgroupVersion version : {CgroupVersion::kSecond, CgroupVersion::kFirst}) {
    std::filesystem::path folder = CgroupFolder(std::to_string(process), version, root);
    if (folder.empty()) continue;
    std::error_code error;
    for (int i = 0; i < kMostLevels && std::filesystem::exists(folder / "cpu.stat", error); ++i) {
      if (HasLimit(folder, version)) files_.push_back(folder / "cpu.stat");
      folder = folder.parent_path();
    }
  }
}

uint64_t Throttle::TotalNs() const {
  uint64_t total = 0;
  for (const std::string& file : files_) total += ThrottledNs(ReadKernelFile(file));
  return total;
}

uint64_t ThrottledNs(const std::string& cpu_stat) {
  const auto number_after = [&cpu_stat](const std::string& name) {
    const size_t at = cpu_stat.find(name);
    return at == std::string::npos ? 0 : std::strtoull(cpu_stat.c_str() + at + name.size(), nullptr, 10);
  };
  const uint64_t microseconds = number_after("throttled_usec ");
  return microseconds > 0 ? microseconds * 1000 : number_after("throttled_time ");
}

}  // namespace cohort::launcher
