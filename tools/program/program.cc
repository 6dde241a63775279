#include "tools/program/program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "CLI/CLI.hpp"

namespace cohort::tools {
namespace {

// Opened the wrong way round: who prints into a closed stream learns that it is.
void HoldStandardStreams() {
  int fd = open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = dup(fd);
  if (fd >= 0) close(fd);  // the first one too many
}

// False, and told, when something is lost.
bool Flushed(const std::string& name) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  const int error = errno != 0 ? errno : EIO;
  std::fprintf(stderr, "%s: cannot write to the standard output: %s\n", name.c_str(), std::strerror(error));
  return false;
}

}  // namespace

int RunProgram(const std::string& name, const std::function<int()>& body) {
  HoldStandardStreams();
  std::signal(SIGXFSZ, SIG_IGN);
  int status = 1;
  try {
    status = body();
  } catch (const std::bad_alloc&) {  // of what the program's own size asks for
    std::fprintf(stderr, "%s: not enough memory; ask for less (fewer ranks, pieces or bytes)\n", name.c_str());
  }
  return Flushed(name) || status != 0 ? status : 1;
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

void FlushOutput(const std::string& name) {
  if (!Flushed(name)) _exit(1);
}

}  // namespace cohort::tools
