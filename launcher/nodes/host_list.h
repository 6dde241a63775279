// Lists of hosts as people and schedulers write them. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::launcher {

struct HostEntry {
  std::string host;          // a name, an IPv4 or IPv6 address, with "user@" before it where it was given
  std::optional<int> slots;  // ranks that may run there, where it was given
  bool operator==(const HostEntry&) const = default;
};

// "a,b:8,node[01-03,7]:4,[fd00::1]:2": names separated by commas, each with the ranks that it takes after a colon.
// Brackets are Slurm's: node[01-03,7]-ib[0-1] stands for every combination, zeros kept, the last bracket fastest.
// kInvalidArgument, which begins with `origin` ("--hosts"): a host that could be taken for an option (a leading '-'), a
// character that no host name has, a range that goes backwards, a host named twice, more than kMaxNodes hosts, none.
absl::StatusOr<std::vector<HostEntry>> ParseHostList(std::string_view text, const std::string& origin);

// The lines of a host file: "a", "a:8" or "a slots=8", brackets as above; # begins a comment. Errors are those of
// ParseHostList and name `origin` and the line.
absl::StatusOr<std::vector<HostEntry>> ParseHostFile(std::string_view text, const std::string& origin);

// A scheduler's node file: a host a line, once for each of its processes; each host is kept once, where it first
// stands. Errors as above; a line with more than one word is one.
absl::StatusOr<std::vector<HostEntry>> ParseNodeFile(std::string_view text, const std::string& origin);

// host-9 before host-10: runs of digits compare as numbers, everything else by character.
bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace cohort::launcher
