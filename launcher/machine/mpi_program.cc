#include "cohort/launcher/machine/mpi_program.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "cohort/launcher/machine/linked_library.h"

namespace cohort::launcher {
namespace {

constexpr char kPythonModule[] = "mpi4py";

// "from mpi4py import MPI" and "mpi4py.bench" have the word, "/opt/mpi4py-demo" has not.
bool HasWord(std::string_view text, std::string_view word) {
  const auto joins = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '/';
  };
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
    const size_t end = at + word.size();
    if ((at == 0 || !joins(text[at - 1])) && (end == text.size() || !joins(text[end]))) return true;
  }
  return false;
}

bool FileNamesModule(const std::string& file) {
  constexpr size_t kMostBytes = 1u << 20;
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return false;  // a pipe would keep us waiting
  std::ifstream in(file, std::ios::binary);
  std::string text(kMostBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text.find(kPythonModule) != std::string::npos;
}

}  // namespace

MpiLibrary MpiLibraryOf(const std::vector<std::string>& command) {
  if (command.empty()) return MpiLibrary::kNone;
  const std::string& path = command[0];
  if (!FindNeededLibrary(path, {"libmpich.so", "libmpi.so.12", "libmpifort.so.12", "libmpicxx.so.12"}).empty()) {
    return MpiLibrary::kMpich;
  }
  if (!FindNeededLibrary(path, {"libmpi.so.40", "libmpi_mpifh.so.40", "libmpi_usempi", "libmpi_cxx.so.40"}).empty()) {
    return MpiLibrary::kOpenMpi;
  }
  const bool names_module = std::any_of(command.begin() + 1, command.end(), [](const std::string& argument) {
    return HasWord(argument, kPythonModule) || (argument.ends_with(".py") && FileNamesModule(argument));
  });
  return names_module ? MpiLibrary::kEither : MpiLibrary::kNone;
}

}  // namespace cohort::launcher
