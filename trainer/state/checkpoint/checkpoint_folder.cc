#include "cohort/trainer/state/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/state/checkpoint/checkpoint_directory.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;

// A checkpoint's name, cut before the number that it ends with; -1 where it has none.
struct Name {
  std::string stem;
  int64_t number = -1;
};

Name Split(const std::string& name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  Name split = {.stem = name.substr(0, digits)};
  std::from_chars(name.data() + digits, name.data() + name.size(), split.number);
  return split;
}

}  // namespace

std::vector<std::string> CheckpointsIn(const std::string& root) {
  std::set<std::pair<int64_t, std::string>> found;
  std::error_code error;
  fs::directory_iterator entry(root, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string path = DirectoryOf(entry->path().string());  // one that was put aside, by its own name
    if (path.empty() || !IsCheckpoint(ReadablePath(path))) continue;
    found.emplace(Split(fs::path(path).filename().string()).number, path);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw DistributedError(absl::StatusCode::kUnavailable,
                           "can't look for checkpoints in " + root + ": " + error.message());
  }
  std::vector<std::string> paths;
  for (auto each = found.rbegin(); each != found.rend(); ++each) paths.push_back(each->second);
  return paths;
}

void PruneCheckpoints(const std::string& newest, int64_t keep, const std::optional<std::set<std::string>>& among) {
  if (keep <= 0) return;
  const fs::path kept(newest);
  const Name name = Split(kept.filename().string());
  if (name.number < 0) return;
  int64_t whole = 1;
  std::error_code error;
  const fs::path root = kept.parent_path().empty() ? fs::path(".") : kept.parent_path();
  for (const std::string& path : CheckpointsIn(root.string())) {
    const std::string file = fs::path(path).filename().string();
    const Name each = Split(file);
    if (among.has_value() && among->count(file) == 0) continue;
    if (each.stem != name.stem || each.number < 0 || each.number >= name.number) continue;
    if (!fs::exists(fs::path(ReadablePath(path)) / kCheckpointIndex, error)) continue;
    if (whole < keep) {
      ++whole;
    } else {
      RemoveCheckpoint(path);
    }
  }
}

}  // namespace cohort::trainer
