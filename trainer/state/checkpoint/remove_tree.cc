#include "cohort/trainer/state/checkpoint/remove_tree.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

namespace cohort::trainer {
namespace {

// Someone else may remove the same.
int Remove(const char* path, const struct stat*, int, struct FTW*) {
  return ::remove(path) == 0 || errno == ENOENT ? 0 : errno;
}

}  // namespace

void RemoveTree(const std::filesystem::path& path, std::error_code& error) {
  constexpr int kOpenDirectories = 16;
  struct stat facts{};
  error.clear();
  // The walk ends early where someone else removes a directory under it.
  while (::lstat(path.c_str(), &facts) == 0) {
    int result = ::nftw(path.c_str(), &Remove, kOpenDirectories, FTW_DEPTH | FTW_PHYS);
    if (result < 0) result = errno;
    if (result == 0) return;
    if (result != ENOENT) return error.assign(result, std::generic_category());
  }
  if (errno != ENOENT && errno != ENOTDIR) error.assign(errno, std::generic_category());
}

void RemoveTree(const std::filesystem::path& path) {
  std::error_code error;
  RemoveTree(path, error);
  if (error) throw std::filesystem::filesystem_error("can't remove", path, error);
}

}  // namespace cohort::trainer
