#include "cohort/launcher/agent/watch/process_name.h"

#include <sys/prctl.h>

#include <cstddef>
#include <cstring>

namespace cohort::launcher {
namespace {

char* arguments_begin = nullptr;
size_t arguments_size = 0;

}  // namespace

void RememberArguments(int argc, char** argv) {
  arguments_begin = argv[0];
  arguments_size = static_cast<size_t>(argv[argc - 1] + std::strlen(argv[argc - 1]) + 1 - argv[0]);
}

void NameProcess(const char* name, std::string_view command_line) {
  ::prctl(PR_SET_NAME, name);
  if (arguments_size <= command_line.size()) return;  // a NUL follows
  std::memset(arguments_begin, 0, arguments_size);
  std::memcpy(arguments_begin, command_line.data(), command_line.size());
}

}  // namespace cohort::launcher
