#include "cohort/launcher/agent/stacks/kernel_file.h"

#include <fstream>
#include <iterator>

namespace cohort::launcher {

std::string ReadKernelFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace cohort::launcher
