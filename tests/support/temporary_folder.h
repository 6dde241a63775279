// A folder for the files of a test, which goes away with it. Tests of the trainer can't use it: libtorch has a
// std::filesystem::remove_all that crashes.
#pragma once

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace cohort {

class TemporaryFolder {
 public:
  // Ends the process where no folder can be made.
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "cohort-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) != nullptr) return;
    std::perror(path_.c_str());
    std::abort();
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  // Replaces the file of this name, such as "proc/vmstat", and makes the folders that lead to it. Returns its path.
  std::string Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }
  // The same, and the file can be executed.
  std::string AddScript(const std::string& name, const std::string& text) const {
    const std::string file = Write(name, text);
    std::filesystem::permissions(file, static_cast<std::filesystem::perms>(0755));
    return file;
  }

 private:
  std::string path_;
};

}  // namespace cohort
