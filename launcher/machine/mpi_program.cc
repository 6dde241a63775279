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

bool IsFile(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);  // a pipe would keep us waiting
}

std::string BeginningOf(const std::string& file, size_t most) {
  if (!IsFile(file)) return "";
  std::ifstream in(file, std::ios::binary);
  std::string text(most, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text;
}

bool FileNamesModule(const std::string& file) {
  constexpr size_t kMostBytes = 1u << 20;
  return BeginningOf(file, kMostBytes).find(kPythonModule) != std::string::npos;
}

MpiLibrary LinkedLibraryOf(const std::string& path) {
  if (!FindNeededLibrary(path, {"libmpich.so", "libmpi.so.12", "libmpifort.so.12", "libmpicxx.so.12"}).empty()) {
    return MpiLibrary::kMpich;
  }
  if (!FindNeededLibrary(path, {"libmpi.so.40", "libmpi_mpifh.so.40", "libmpi_usempi", "libmpi_cxx.so.40"}).empty()) {
    return MpiLibrary::kOpenMpi;
  }
  return MpiLibrary::kNone;
}

// Whether a path in the text, as a shell would cut it into words, is that of a program that is linked with MPI. Looks
// at no more than `words` of them, which it takes from.
bool NamesProgram(std::string_view text, size_t* words) {
  constexpr std::string_view kBetween = " \t\n;&|()<>'\"`=";
  while (*words > 0) {
    const size_t begin = text.find_first_not_of(kBetween);
    if (begin == std::string_view::npos) return false;
    text.remove_prefix(begin);
    const std::string word(text.substr(0, text.find_first_of(kBetween)));
    text.remove_prefix(word.size());
    if (StartsRanks(word)) {
      *words = 0;
      return false;
    }
    if (word.find('/') == std::string::npos) continue;
    --*words;
    if (IsFile(word) && LinkedLibraryOf(word) != MpiLibrary::kNone) return true;
  }
  return false;
}

// Whether a wrapper starts one: sh -c './program', env A=1 ./program, or a shell's script.
bool StartsProgram(const std::vector<std::string>& command) {
  constexpr size_t kMostScriptBytes = 64u << 10;
  size_t words = StartsRanks(command[0]) ? 0 : 128;
  for (const std::string& argument : command) {
    if (&argument != command.data() && NamesProgram(argument, &words)) return true;
    const bool is_script = &argument == command.data() || argument.ends_with(".sh");
    if (!is_script) continue;
    const std::string script = BeginningOf(argument, kMostScriptBytes);
    const std::string_view first = std::string_view(script).substr(0, script.find('\n'));
    if (first.starts_with("#!") && first.find("sh") != std::string_view::npos && NamesProgram(script, &words)) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool StartsRanks(const std::string& program) {
  std::string name = std::filesystem::path(program).filename();
  name.resize(std::min(name.find('.'), name.size()));  // mpiexec.hydra, mpirun.openmpi
  return name == "mpirun" || name == "mpiexec" || name == "orterun" || name == "prterun" || name == "srun";
}

MpiLibrary MpiLibraryOf(const std::vector<std::string>& command) {
  if (command.empty()) return MpiLibrary::kNone;
  const MpiLibrary linked = LinkedLibraryOf(command[0]);
  if (linked != MpiLibrary::kNone) return linked;
  const bool names_module = std::any_of(command.begin() + 1, command.end(), [](const std::string& argument) {
    return HasWord(argument, kPythonModule) || (argument.ends_with(".py") && FileNamesModule(argument));
  });
  return names_module || StartsProgram(command) ? MpiLibrary::kEither : MpiLibrary::kNone;
}

}  // namespace cohort::launcher
