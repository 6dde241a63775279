#include "cohort/launcher/agent/watch/open_mpi_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace cohort::launcher {
namespace {

constexpr int kMostTimes = 20;
constexpr useconds_t kPauseUs = 10'000;

}  // namespace

std::string OpenMpiFolder(std::string_view agent_address) {
  constexpr size_t kDigits = 12;  // sockets in it have short names
  std::error_code error;
  const std::filesystem::path above = std::filesystem::temp_directory_path(error);
  if (error || agent_address.size() < kDigits) return "";
  return (above / ("cohort-mpi-" + std::string(agent_address.substr(agent_address.size() - kDigits)))).string();
}

void RemoveOpenMpiFolder(std::string_view agent_address) {
  const std::string folder = OpenMpiFolder(agent_address);
  // Sentinel and keeper may do so at the same time, and each then finds that something has gone which it has listed.
  for (int times = 0; times < kMostTimes; ++times) {
    struct stat found{};
    if (folder.empty() || ::lstat(folder.c_str(), &found) != 0) return;
    if (!S_ISDIR(found.st_mode) || found.st_uid != ::geteuid()) return;
    if (times > 0) ::usleep(kPauseUs);
    std::error_code error;
    std::filesystem::remove_all(folder, error);
  }
}

}  // namespace cohort::launcher
