#include "cohort/launcher/machine/program_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "cohort/launcher/base/printable.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

constexpr size_t kBeginning = 4096;  // bytes that are looked at
constexpr size_t kMostShown = 200;   // of an interpreter's path
constexpr char kNotebook[] = "it is a notebook; make a script of it first: jupyter nbconvert --to script ";

std::string ReadBeginning(const std::string& path) {
  const runtime::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  std::string text(kBeginning, '\0');
  const ssize_t got = file.valid() ? ::read(file.get(), text.data(), text.size()) : -1;
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return text;
}

struct Shebang {
  std::string interpreter;
  std::string argument;  // the rest of the line; empty: none
  bool windows = false;  // a carriage return ends it
};

std::optional<Shebang> ReadShebang(const std::string& text) {
  if (!text.starts_with("#!")) return std::nullopt;
  std::string line = text.substr(2, text.find('\n') - 2);
  Shebang shebang;
  shebang.windows = line.ends_with('\r');
  if (shebang.windows) line.pop_back();
  std::istringstream words(line);
  words >> shebang.interpreter >> std::ws;
  std::getline(words, shebang.argument);
  return shebang;
}

// "python3" for "#!/usr/bin/env python3" and "#!/usr/bin/python3".
std::string InterpreterOf(const Shebang& shebang) {
  const std::string name = shebang.interpreter.substr(shebang.interpreter.rfind('/') + 1);
  if (name != "env") return name + (shebang.argument.empty() ? "" : " " + shebang.argument);
  return shebang.argument.starts_with("-S ") ? shebang.argument.substr(3) : shebang.argument;
}

std::string TroubleWithShebang(const Shebang& shebang) {
  if (shebang.windows) {
    return "its first line ends with a carriage return, as Windows ends lines; convert the file: sed -i 's/\\r$//' "
           "FILE, or dos2unix FILE";
  }
  if (shebang.interpreter.empty()) return "its first line, #!, names no interpreter";
  const std::string shown = Printable(shebang.interpreter, kMostShown);
  if (::access(shebang.interpreter.c_str(), F_OK) != 0) {
    return "its first line names the interpreter " + shown + ", which is not there";
  }
  if (::access(shebang.interpreter.c_str(), X_OK) != 0) {
    return "its first line names the interpreter " + shown + ", which may not be executed";
  }
  return "";
}

std::string MachineName(uint16_t machine) {
  static constexpr std::pair<uint16_t, const char*> kNames[] = {
      {EM_X86_64, "x86_64"}, {EM_AARCH64, "aarch64"}, {EM_386, "32-bit x86"}, {EM_ARM, "32-bit ARM"},
      {EM_PPC64, "ppc64"},   {EM_S390, "s390"},       {EM_RISCV, "RISC-V"}};
  for (const auto& [known, name] : kNames) {
    if (known == machine) return name;
  }
  return "another processor (ELF machine " + std::to_string(machine) + ")";
}

// The path of the loader that the file asks for, within what was read; empty: none.
std::string LoaderOf(const std::string& text, const Elf64_Ehdr& header) {
  for (size_t i = 0; i < header.e_phnum && header.e_phentsize == sizeof(Elf64_Phdr); ++i) {
    const size_t at = header.e_phoff + i * sizeof(Elf64_Phdr);
    if (header.e_phoff > text.size() || at + sizeof(Elf64_Phdr) > text.size()) break;
    Elf64_Phdr segment;
    std::memcpy(&segment, text.data() + at, sizeof segment);
    if (segment.p_type != PT_INTERP || segment.p_offset >= text.size()) continue;
    return text.c_str() + segment.p_offset;
  }
  return "";
}

std::string TroubleWithElf(const std::string& text) {
  Elf64_Ehdr header, own;
  const std::string self = ReadBeginning("/proc/self/exe");
  if (text.size() < sizeof header || self.size() < sizeof own) return "it is cut off: build or copy it again";
  std::memcpy(&header, text.data(), sizeof header);
  std::memcpy(&own, self.data(), sizeof own);
  if (header.e_machine != own.e_machine || header.e_ident[EI_DATA] != own.e_ident[EI_DATA]) {
    utsname machine{};
    ::uname(&machine);
    return "it is built for " + MachineName(header.e_machine) + ", and this machine is " + machine.machine;
  }
  if (header.e_type == ET_REL) return "it is an object file; link it first";
  if (header.e_type == ET_CORE) return "it is the dump of a program's memory";
  const std::string loader = LoaderOf(text, header);
  if (!loader.empty() && ::access(loader.c_str(), X_OK) != 0) {
    return "its loader " + Printable(loader, kMostShown) + " is not there: it is built for another system";
  }
  if (header.e_entry == 0) return "it is a shared library";
  return "";
}

}  // namespace

std::string TroubleWithProgram(const std::string& path) {
  const std::string text = ReadBeginning(path);
  if (text.empty()) return "it is empty";
  if (const std::optional<Shebang> shebang = ReadShebang(text)) return TroubleWithShebang(*shebang);
  if (text.starts_with(ELFMAG)) return TroubleWithElf(text);
  if (path.ends_with(".ipynb")) return std::string(kNotebook) + "FILE";
  using std::string_view_literals::operator""sv;
  static constexpr std::pair<std::string_view, const char*> kBeginnings[] = {
      {"\xEF\xBB\xBF", "it begins with a byte order mark, so its first line is not seen; save it without one"},
      {"\xFF\xFE"sv, "it is written in UTF-16; save it as UTF-8"},
      {"\xFE\xFF"sv, "it is written in UTF-16; save it as UTF-8"},
      {"MZ", "it is a program for Windows"},
      {"\xCF\xFA\xED\xFE"sv, "it is a program for macOS"},
      {"\xCA\xFE\xBA\xBE"sv, "it is a Java class or a program for macOS"},
      {"PK\x03\x04"sv, "it is a zip archive: python3 FILE runs an application of Python, java -jar FILE one of Java"},
      {"\x1F\x8B"sv, "it is compressed; unpack it first"},
      {"!<arch>", "it is a library of object files"}};
  for (const auto& [beginning, trouble] : kBeginnings) {
    if (std::string_view(text).starts_with(beginning)) return trouble;
  }
  if (text.find('\0') != std::string::npos) return "";
  return "a script needs a first line such as #!/bin/sh";
}

bool HasWindowsFirstLine(const std::string& path) {
  const std::optional<Shebang> shebang = ReadShebang(ReadBeginning(path));
  return shebang && shebang->windows;
}

std::string InsteadOfExecuting(const std::string& path, const std::string& name) {
  const std::string text = ReadBeginning(path);
  const std::string suffix = name.substr(std::min(name.rfind('.'), name.size()));
  if (suffix == ".ipynb") {
    return kNotebook + name;
  }
  for (const char* const source : {".c", ".cc", ".cpp", ".cxx", ".cu", ".hip", ".rs", ".go", ".f90", ".java"}) {
    if (suffix == source) return "it is source code; compile it first";
  }
  static constexpr std::pair<std::string_view, const char*> kInterpreters[] = {
      {".sh", "bash"},   {".bash", "bash"}, {".zsh", "zsh"}, {".pl", "perl"}, {".rb", "ruby"},       {".R", "Rscript"},
      {".r", "Rscript"}, {".jl", "julia"},  {".lua", "lua"}, {".js", "node"}, {".jar", "java -jar"}, {".m", "octave"}};
  std::string interpreter;
  if (const std::optional<Shebang> shebang = ReadShebang(text)) interpreter = InterpreterOf(*shebang);
  for (const auto& [known, program] : kInterpreters) {
    if (interpreter.empty() && suffix == known) interpreter = program;
  }
  if (interpreter.empty() && text.starts_with("PK\x03\x04")) interpreter = "python3";
  if (!interpreter.empty()) {
    return "use chmod +x, or name its interpreter first: " + Printable(interpreter, kMostShown) + " " + name;
  }
  return text.starts_with(ELFMAG) ? "use chmod +x" : "use chmod +x, or name its interpreter first (python3 script.py)";
}

}  // namespace cohort::launcher
