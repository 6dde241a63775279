// Lines of PMI-1, by which an MPI library asks its launcher who it is and exchanges addresses: "cmd=put kvsname=k key=a
// value=b". Source: MPICH's src/pmi/maint/pmi-1.1.txt and src/pmi/simple.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cohort::launcher {

// Clients of MPICH 4.0 and older write and read lines of this many bytes, with their end.
inline constexpr size_t kMaxClientLine = 1024;
// The limits that get_maxes tells, each with a zero at the end. MPICH 4.0 takes for a value what the two others leave
// of a line, if that is less, and breaks on a longer value: these leave 865. Values that its ranks put are split.
inline constexpr size_t kToldPmiName = 64;
inline constexpr size_t kToldPmiKey = 64;
inline constexpr size_t kToldPmiValue = 864;
// Longer ones are refused.
inline constexpr size_t kMaxPmiName = 256;
inline constexpr size_t kMaxPmiKey = 256;
inline constexpr size_t kMaxPmiValue = 4096;
// A line that is longer is no PMI-1.
inline constexpr size_t kMaxPmiLine = 16u << 10;

class Pmi1Message {
 public:
  // Takes any bytes, without the newline. Words without '=' are left out. The value of "value" and of "message" goes on
  // to the end of the line, blanks included.
  static Pmi1Message Parse(std::string_view line);

  // "put" of "cmd=put" or "mcmd=put"; empty: the line is no message.
  const std::string& command() const { return command_; }
  // Empty where it is missing.
  std::string_view Get(std::string_view name) const;
  // A decimal number, or `otherwise`.
  int GetNumber(std::string_view name, int otherwise) const;

 private:
  std::string command_;
  std::vector<std::pair<std::string, std::string>> words_;
};

}  // namespace cohort::launcher
