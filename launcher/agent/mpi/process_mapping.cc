#include "cohort/launcher/agent/mpi/process_mapping.h"

namespace cohort::launcher {

std::string ProcessMapping(const std::vector<size_t>& ranks, size_t most) {
  std::string text = "(vector";
  for (size_t node = 0; node < ranks.size();) {
    size_t end = node + 1;
    while (end < ranks.size() && ranks[end] == ranks[node]) ++end;
    if (ranks[node] > 0) {
      text += ",(" + std::to_string(node) + "," + std::to_string(end - node) + "," + std::to_string(ranks[node]) + ")";
    }
    node = end;
  }
  text += ")";
  return text.size() <= most ? text : "";
}

}  // namespace cohort::launcher
