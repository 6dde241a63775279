#include "cohort/launcher/agent/watch/process_name.h"

#include <linux/prctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace cohort::launcher {
namespace {

char* arguments_begin = nullptr;
size_t arguments_size = 0;

// All but the program break. Reads /proc/self/stat, whose fields proc(5) numbers from 1; the third is the first after
// the name.
bool ReadOwnAddresses(prctl_mm_map* map) {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  uint64_t values[52] = {};
  for (int i = 3; i <= 51 && fields >> field; ++i) values[i] = std::strtoull(field.c_str(), nullptr, 10);
  map->start_code = values[26];
  map->end_code = values[27];
  map->start_stack = values[28];
  map->start_data = values[45];
  map->end_data = values[46];
  map->start_brk = values[47];
  map->env_start = values[50];
  map->env_end = values[51];
  return values[51] != 0;
}

// Tells the kernel that the arguments are elsewhere, where there is room for that many bytes. Never freed.
bool MoveArguments(size_t bytes) {
  prctl_mm_map map{};
  if (!ReadOwnAddresses(&map)) return false;
  char* const room = static_cast<char*>(std::calloc(1, bytes));
  if (room == nullptr) return false;
  map.arg_start = reinterpret_cast<uint64_t>(room);
  map.arg_end = map.arg_start + bytes;
  map.exe_fd = ~0U;
  map.brk = reinterpret_cast<uint64_t>(::sbrk(0));  // last: what was freed above may have moved it
  if (::prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0) != 0) {
    std::free(room);
    return false;
  }
  arguments_begin = room;
  arguments_size = bytes;
  return true;
}

}  // namespace

void RememberArguments(int argc, char** argv) {
  arguments_begin = argv[0];
  arguments_size = static_cast<size_t>(argv[argc - 1] + std::strlen(argv[argc - 1]) + 1 - argv[0]);
}

void NameProcess(const char* name, std::string_view command_line) {
  ::prctl(PR_SET_NAME, name);
  if (arguments_size == 0) return;
  if (arguments_size <= command_line.size() && !MoveArguments(command_line.size() + 1)) return;  // a NUL follows
  std::memset(arguments_begin, 0, arguments_size);
  std::memcpy(arguments_begin, command_line.data(), command_line.size());
}

}  // namespace cohort::launcher
