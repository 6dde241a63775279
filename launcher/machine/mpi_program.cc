#include "cohort/launcher/machine/mpi_program.h"

#include <algorithm>
#include <fstream>

#include "cohort/launcher/machine/linked_library.h"

namespace cohort::launcher {
namespace {

constexpr char kPythonModule[] = "mpi4py";

bool NamesModule(const std::string& file) {
  constexpr size_t kMostBytes = 1u << 20;
  std::ifstream in(file, std::ios::binary);
  std::string text(kMostBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text.find(kPythonModule) != std::string::npos;
}

}  // namespace

bool LooksLikeMpi(const std::string& path, const std::vector<std::string>& arguments) {
  if (!FindNeededLibrary(path, {"libmpich.so", "libmpi.so.12", "libmpifort.so.12", "libmpicxx.so.12"}).empty()) {
    return true;
  }
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument.find(kPythonModule) != std::string::npos || (argument.ends_with(".py") && NamesModule(argument));
  });
}

}  // namespace cohort::launcher
