// A network described in a line of text: hosts with ranks, leaf switches with hosts, and a core above them. Built-in
// descriptions ("presets") carry typical figures; every figure can be replaced.
//
//   rank ── port ── host ── NIC ── leaf switch ── uplinks ── core (never the bottleneck)
//
//   fat-tree:nodes=8192,ranks-per-node=8,oversubscription=2
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "cohort/comm/select/tuning.h"

namespace cohort::comm {

struct Network {
  std::string preset = "flat";
  int64_t nodes = 4;
  int64_t ranks_per_node = 1;
  int64_t nodes_per_leaf = 32;
  // A leaf switch's uplinks carry 1/oversubscription of what its hosts' NICs do.
  double oversubscription = 1;
  // Ranks of one host, and of different hosts: latency, cost of a further message, and the port of one rank.
  LevelTuning local = {.alpha_us = 0.3, .message_us = 0.1, .gigabytes_s = 5};
  LevelTuning remote = {.alpha_us = 5, .message_us = 0.5, .gigabytes_s = 12};
  double nic_gigabytes_s = 12;  // of one host, in each direction
  double reduce_gigabytes_s = 10;
  bool cyclic = false;  // rank r on host r % nodes, instead of r / ranks_per_node

  int64_t ranks() const { return nodes * ranks_per_node; }
  int64_t NodeOf(int64_t rank) const { return cyclic ? rank % nodes : rank / ranks_per_node; }
  // In the form that Parse takes: the preset and every figure.
  std::string ToString() const;
  // "PRESET" or "PRESET:name=value,...". Presets: `flat` (a rank a host, one switch), `host` (shared memory of one
  // host), `fat-tree` (100 Gbit/s), `gpu` (8 GPUs a host with a NIC each, rails of a fat tree), `ethernet` (10 Gbit/s
  // over TCP). kInvalidArgument names the position, what stands there and what may.
  static absl::StatusOr<Network> Parse(std::string_view text);
};

}  // namespace cohort::comm
