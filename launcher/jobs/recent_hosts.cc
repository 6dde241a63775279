#include "cohort/launcher/jobs/recent_hosts.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "cohort/launcher/base/bounded_call.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/whole_file.h"

namespace cohort::launcher {
namespace {

constexpr size_t kLongestHost = 255;

// Empty: this user has no folder for it.
std::string HostsFile() {
  std::string folder = GetVariable("XDG_STATE_HOME").value_or("");
  if (!folder.starts_with('/')) {
    folder = GetVariable("HOME").value_or("");
    if (!folder.starts_with('/')) return "";
    folder += "/.local/state";
  }
  return folder + "/dlaunch/hosts";
}

bool IsHost(const std::string& name) {
  constexpr std::string_view kOthers = "-_.:@[]%";
  return !name.empty() && name.size() <= kLongestHost && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), [&](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  kOthers.find(c) != std::string_view::npos;
         });
}

std::vector<std::string> ReadHosts(const std::string& path) {
  std::vector<std::string> hosts;
  std::ifstream file(path);
  for (std::string line; hosts.size() < kMostRecentHosts && std::getline(file, line);) hosts.push_back(line);
  return MergeHosts(hosts, {});
}

absl::Status WriteHosts(const std::string& path, const std::vector<std::string>& latest) {
  std::error_code error;
  const std::vector<std::string> before = ReadHosts(path);
  const std::vector<std::string> hosts = MergeHosts(latest, before);
  if (hosts == before) return absl::OkStatus();
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return absl::UnavailableError(error.message());
  std::string text;
  for (const std::string& host : hosts) text += host + "\n";
  return runtime::WriteWholeFile(path, text);
}

}  // namespace

std::vector<std::string> MergeHosts(const std::vector<std::string>& latest, const std::vector<std::string>& before) {
  std::vector<std::string> hosts;
  for (const std::vector<std::string>* const list : {&latest, &before}) {
    for (const std::string& host : *list) {
      if (hosts.size() == kMostRecentHosts) return hosts;
      if (IsHost(host) && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    }
  }
  return hosts;
}

void RememberHosts(const std::vector<std::string>& hosts) {
  const std::string path = HostsFile();
  if (path.empty() || hosts.empty()) return;
  BoundedCall call([path, hosts] { return WriteHosts(path, hosts); });
  call.Await(runtime::Deadline::After(std::chrono::seconds(1)));
}

std::vector<std::string> RecentHosts() {
  const std::string path = HostsFile();
  return path.empty() ? std::vector<std::string>() : ReadHosts(path);
}

}  // namespace cohort::launcher
