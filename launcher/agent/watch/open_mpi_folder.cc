#include "cohort/launcher/agent/watch/open_mpi_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace cohort::launcher {
namespace {

constexpr int kMostTimes = 20;
constexpr useconds_t kPauseUs = 10'000;

void Remove(const std::string& folder) {
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

}  // namespace

OpenMpiFolders OpenMpiFolders::Of(std::string_view agent_address) {
  constexpr size_t kDigits = 12;  // sockets in it have short names
  if (agent_address.size() < kDigits) return {};
  const std::string name = "dlaunch-mpi-" + std::string(agent_address.substr(agent_address.size() - kDigits));
  OpenMpiFolders folders;
  folders.memory = "/dev/shm/" + name;
  std::error_code error;
  const std::filesystem::path above = std::filesystem::temp_directory_path(error);
  if (!error) folders.files = (above / name).string();
  return folders;
}

OpenMpiFolders OpenMpiFolders::Within(const std::string& name) const {
  OpenMpiFolders inner;
  if (!files.empty()) inner.files = files + "/" + name;
  if (!memory.empty()) inner.memory = memory + "/" + name;
  return inner;
}

void RemoveOpenMpiFolders(std::string_view agent_address) {
  const OpenMpiFolders folders = OpenMpiFolders::Of(agent_address);
  Remove(folders.memory);
  Remove(folders.files);
}

}  // namespace cohort::launcher
