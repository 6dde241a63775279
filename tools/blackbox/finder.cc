#include "tools/blackbox/finder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "cohort/runtime/base/status_macros.h"
#include "tools/blackbox/segment_copy.h"

namespace cohort::blackbox {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMemoryName = "/memfd:cohort-segment";

// Every descriptor of a segment that the process has. `denied`: the caller may not see them.
std::vector<Found> SegmentsOf(int pid, bool* denied) {
  std::vector<Found> found;
  std::error_code error;
  fs::directory_iterator entry("/proc/" + std::to_string(pid) + "/fd", error);
  *denied = error == std::errc::permission_denied;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    const std::string target = fs::read_symlink(entry->path(), ignored).string();
    if (target.rfind(kMemoryName, 0) != 0) continue;
    Found one;
    one.fd = runtime::FileDescriptor(open(entry->path().c_str(), O_RDONLY | O_CLOEXEC));
    one.holder = pid;
    if (!one.fd.valid()) {
      *denied = errno == EACCES || errno == EPERM;
      continue;
    }
    const absl::StatusOr<SegmentCopy> copy = CopySegment(one.fd.get(), 0);
    if (!copy.ok()) continue;
    one.job_id = copy->job_id;
    found.push_back(std::move(one));
  }
  return found;
}

}  // namespace

absl::StatusOr<Found> FindInProcess(int pid) {
  bool denied = false;
  std::vector<Found> found = SegmentsOf(pid, &denied);
  if (!found.empty()) return std::move(found.front());
  const std::string who = "process " + std::to_string(pid);
  if (denied) {
    return absl::PermissionDeniedError("you may not look into " + who + ": be its user, or root");
  }
  if (ProcessState(pid) == "gone") {
    return absl::NotFoundError("there is no " + who + "; name another rank of its host, the agent, or the job (--job)");
  }
  return absl::NotFoundError(who + " is neither a rank nor an agent; without arguments all jobs here are listed");
}

std::vector<Found> FindAll() {
  std::vector<Found> all;
  std::set<std::pair<dev_t, ino_t>> seen;
  std::error_code error;
  fs::directory_iterator entry("/proc", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    bool denied = false;
    for (Found& found : SegmentsOf(std::atoi(name.c_str()), &denied)) {
      struct stat info{};
      if (fstat(found.fd.get(), &info) != 0 || !seen.insert({info.st_dev, info.st_ino}).second) continue;
      all.push_back(std::move(found));
    }
  }
  return all;
}

absl::StatusOr<std::string> ResolveJob(const std::vector<std::string>& ids, const std::string& typed) {
  std::set<std::string> matching;
  for (const std::string& id : ids) {
    if (id == typed) return id;
    if (id.starts_with(typed) || id.starts_with("job-" + typed)) matching.insert(id);
  }
  if (matching.empty()) {
    return absl::NotFoundError("there is no job \"" + typed + "\" on this machine that you may look into");
  }
  if (matching.size() == 1) return *matching.begin();
  std::string names;
  for (const std::string& id : matching) names += (names.empty() ? "" : ", ") + id;
  return absl::InvalidArgumentError("several jobs begin with \"" + typed + "\": " + names);
}

absl::StatusOr<std::vector<Found>> FindJob(const std::string& typed) {
  std::vector<Found> all = FindAll();
  std::vector<std::string> ids;
  for (const Found& found : all) ids.push_back(found.job_id);
  COHORT_ASSIGN_OR_RETURN(const std::string meant, ResolveJob(ids, typed));
  std::erase_if(all, [&meant](const Found& found) { return found.job_id != meant; });
  return all;
}

std::string ProcessState(int pid) {
  if (pid <= 0) return "-";
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::ostringstream all;
  all << in.rdbuf();  // a process that ends meanwhile is an error of the read: no text here, but thrown by iterators
  const std::string text = all.str();
  const size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return "gone";
  switch (text[name_end + 2]) {
    case 'T':
      return "stopped";
    case 't':
      return "traced";
    case 'Z':
    case 'X':
      return "ending";
    default:
      return "running";
  }
}

}  // namespace cohort::blackbox
