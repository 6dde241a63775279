// A real Slurm whose two nodes are virtual: two slurmd on this machine, with a slurmctld and a munged of their own.
// Needs root and the packages.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {

// A cluster of nodes v0 and v1 until the end of the process; all its files lie in one folder.
class SlurmCluster {
 public:
  static SlurmCluster& Get() {
    static SlurmCluster cluster;
    return cluster;
  }
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  // Why there is none; empty: it is up.
  const std::string& problem() const { return problem_; }
  const std::string& folder() const { return folder_.path(); }
  std::string configuration() const { return folder_.path() + "/slurm.conf"; }
  // The command with the variable that leads Slurm's programs to this cluster.
  std::string With(const std::string& command) const { return "SLURM_CONF=" + configuration() + " " + command; }

 private:
  SlurmCluster();
  ~SlurmCluster();
  void WriteConfiguration();
  void Start(std::vector<std::string> arguments);
  void Await(const std::string& what, const std::function<bool()>& up);

  std::string problem_;
  TemporaryFolder folder_;
  std::vector<pid_t> servers_;
};

}  // namespace cohort::launcher
