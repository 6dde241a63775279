// Lists of hosts as people and schedulers write them. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort::launcher {

struct HostEntry {
  std::string host;          // a name, an IPv4 or IPv6 address, with "user@" before it where it was given
  std::optional<int> slots;  // ranks that may run there, where it was given
  bool operator==(const HostEntry&) const = default;
};

// Gathers hosts in the order in which they are first named. A host that is named again gets more slots: those that it
// has there, or one. Errors are kInvalidArgument: a host that could be taken for an option (a leading '-'), a character
// that no host name has, a range that goes backwards, more than kMaxNodes hosts or kMaxRanksPerNode slots.
class HostCollection {
 public:
  // One host, with "user@" before it or not, without slots in its name.
  absl::Status Add(const std::string& host, std::optional<int> slots);
  // Hosts separated by commas or blanks, each as ParseHostList takes it.
  absl::Status AddPatterns(std::string_view text);
  std::vector<HostEntry> Take() && { return std::move(hosts_); }

 private:
  // "node[1-3]:4", "[fd00::1]:2", "a", "a*4".
  absl::Status AddPattern(std::string_view text);

  std::vector<HostEntry> hosts_;
  std::map<std::string, size_t> places_;  // in hosts_
};

// The slots of one host, from 1 to kMaxRanksPerNode; nothing for any other text. Pure.
std::optional<int> ReadSlots(std::string_view text);

// "a,b:8,node[01-03,7]:4,[fd00::1]:2": names separated by commas or blanks, each with the ranks that it takes after a
// colon. Brackets are Slurm's: node[01-03,7]-ib[0-1] stands for every combination, zeros kept, the last bracket
// fastest. "a,a" is "a:2". Errors are those of HostCollection and begin with `origin` ("--hosts"); no host is one too.
absl::StatusOr<std::vector<HostEntry>> ParseHostList(std::string_view text, const std::string& origin);

// A scheduler's node file: a host a line, once for each of its processes; each host is kept once, where it first
// stands. Errors as above; a line with more than one word is one.
absl::StatusOr<std::vector<HostEntry>> ParseNodeFile(std::string_view text, const std::string& origin);

// host-9 before host-10: runs of digits compare as numbers, everything else by character.
bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace cohort::launcher
