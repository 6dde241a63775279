// Output files of programs. They are checked before training, so that a program reports at once if it cannot write.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "c10/util/Exception.h"

namespace cohort::examples {

// Throws c10::Error unless files can be made in `folder`.
inline void CheckWritable(const std::filesystem::path& folder) {
  TORCH_CHECK(std::filesystem::is_directory(folder), "there is no folder ", folder.string());
  TORCH_CHECK(::access(folder.c_str(), W_OK | X_OK) == 0, "can't write in ", folder.string(), ": ",
              std::strerror(errno));
}

// The same for one file, which may be there. `option` names it.
inline void CheckOutputFile(const std::string& file, const std::string& option) {
  std::error_code none;
  TORCH_CHECK(!std::filesystem::exists(file, none) || std::filesystem::is_regular_file(file, none), option, " ", file,
              ": it is no ordinary file, and would be replaced by one");
  try {
    CheckWritable(std::filesystem::absolute(file).parent_path());
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, option, " ", file, ": ", error.what_without_backtrace());
  }
}

}  // namespace cohort::examples
