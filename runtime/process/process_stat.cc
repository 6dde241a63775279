#include "cohort/runtime/process/process_stat.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace cohort::runtime {

std::optional<ProcessStat> ReadProcessStat(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  // Behind the name, which may hold anything, comes field 3, the state.
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end + 1));
  ProcessStat stat;
  std::string field;
  for (int number = 3; fields >> field; ++number) {
    if (number == 3) stat.ended = field == "Z" || field == "X";
    if (number == 9) stat.flags = std::strtoull(field.c_str(), nullptr, 10);
    if (number == 22) stat.start_time = std::strtoull(field.c_str(), nullptr, 10);
    if (number == 52) stat.exit_code = std::atoi(field.c_str());
  }
  return stat;
}

}  // namespace cohort::runtime
