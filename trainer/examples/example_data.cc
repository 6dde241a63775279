#include "cohort/trainer/examples/example_data.h"

#include <filesystem>

#include "c10/util/Exception.h"

namespace cohort::examples {

std::string FindExampleData(const std::string& name) {
  const std::filesystem::path place = std::filesystem::path("share/cohort") / name;
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const std::filesystem::path first = folder / place;
  for (int level = 0; level < 3; ++level, folder = folder.parent_path()) {
    if (std::filesystem::exists(folder / place)) return folder / place;
  }
  TORCH_CHECK(false, name, " is not at ", first.string(), ", where a build and an installation have it");
}

}  // namespace cohort::examples
