// Which checkpoints a program removes when it has written a newer one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "c10/util/Exception.h"
#include "cohort/trainer/state/checkpoint/checkpoint_folder.h"

namespace cohort::examples {

// For the rank that prints.
class OldCheckpoints {
 public:
  // `resumes`: what is in the folder is this run's own. Else it may be another run's, and stays.
  OldCheckpoints(std::string program, int64_t keep, bool resumes) : program_(std::move(program)), keep_(keep) {
    if (!resumes) written_.emplace();
  }

  // Called when `newest` is complete. Failures to remove go to standard error output and do not end training.
  void Prune(const std::string& newest) {
    if (written_.has_value()) written_->insert(std::filesystem::path(newest).filename().string());
    try {
      trainer::PruneCheckpoints(newest, keep_, written_);
    } catch (const c10::Error& error) {
      Warn(error.what_without_backtrace());
    } catch (const std::exception& error) {
      Warn(error.what());
    }
  }

 private:
  void Warn(const char* why) const { std::fprintf(stderr, "%s: older checkpoints stay: %s\n", program_.c_str(), why); }

  std::string program_;
  int64_t keep_;
  std::optional<std::set<std::string>> written_;
};

}  // namespace cohort::examples
