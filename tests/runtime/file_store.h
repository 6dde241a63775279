// A key-value store between the processes of a test: one file a key, in a folder that goes away with the test.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::runtime::testing {

class FileStore : public KeyValueStore {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Put(std::string_view key, std::string_view value) override {
    const std::string path = PathOf(key);
    if (std::filesystem::exists(path)) return absl::AlreadyExistsError(std::string(key));
    std::ofstream(path + ".new") << value;
    std::filesystem::rename(path + ".new", path);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    while (!std::filesystem::exists(PathOf(key))) {
      if (deadline.passed()) return absl::DeadlineExceededError("no " + std::string(key));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ostringstream text;
    text << std::ifstream(PathOf(key)).rdbuf();
    return text.str();
  }

 private:
  std::string PathOf(std::string_view key) const {
    std::string name(key);
    for (char& c : name) {
      if (c == '/') c = '_';
    }
    return folder_ + "/" + name;
  }
  const std::string folder_;
};

}  // namespace cohort::runtime::testing
