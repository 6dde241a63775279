// A folder for the files of a test of the trainer. tests/support/temporary_folder.h serves programs without libtorch.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "gtest/gtest.h"

namespace cohort::trainer {

// Made empty; removed with all that is in it.
class RemovedFolder {
 public:
  // Ends the process where no folder can be made.
  RemovedFolder() : path_(testing::TempDir() + "cohort-trainer-XXXXXX") {
    if (::mkdtemp(path_.data()) != nullptr) return;
    std::perror(path_.c_str());
    std::abort();
  }
  ~RemovedFolder() {
    std::error_code ignored;
    RemoveTree(path_, ignored);
  }
  RemovedFolder(const RemovedFolder&) = delete;
  RemovedFolder& operator=(const RemovedFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace cohort::trainer
