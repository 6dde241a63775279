// The variables that a rank finds in its environment.
#pragma once

#include <string>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// Everything that a rank's variables are made of.
struct RankEnvironment {
  const v1::Assignment* assignment = nullptr;
  const v1::RankPlacement* rank = nullptr;
  int node = 0;
  std::string agent_address;
  int cpu_share = 1;  // for OMP_NUM_THREADS
};

// The variables of one rank: those inherited, without what other launchers left there; then the job's own (--env); then
// what names this rank, which nothing overrides. Pure.
std::vector<std::string> BuildRankEnvironment(const std::vector<std::string>& inherited, const RankEnvironment& rank);

}  // namespace cohort::launcher
