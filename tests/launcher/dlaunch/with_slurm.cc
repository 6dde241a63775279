// with_slurm <program> [arguments]: runs the program beside a Slurm of two nodes (slurm_cluster.h), which its
// SLURM_CONF names, and ends the cluster after it. Where there can be none it prints the reason and runs nothing.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/launcher/dlaunch/slurm_cluster.h"

int main(int argc, char** argv) {
  using cohort::launcher::SlurmCluster;
  const SlurmCluster& cluster = SlurmCluster::Get();
  if (!cluster.problem().empty()) {
    std::printf("%s\n", cluster.problem().c_str());
    return 0;
  }
  std::string command;
  for (int i = 1; i < argc; ++i) command += (i > 1 ? " '" : "'") + std::string(argv[i]) + "'";
  ::setenv("SLURM_CONF", cluster.configuration().c_str(), 1);
  return std::system(command.c_str()) == 0 ? 0 : 1;
}
