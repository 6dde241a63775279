// Batch systems and MPI launchers that name their hosts in a file or a variable. The hosts are reached by ssh, those of
// LSF by blaunch.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/nodes/host_list.h"
#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {

// How a batch system names a job's hosts.
struct NodeFileSystem {
  const char* name;        // "PBS", in words
  const char* job;         // the variable with the job's number; nullptr: the file's alone says that there is a job
  const char* file;        // the variable with the file's path
  const char* older_file;  // another name of that variable; nullptr: there is none
  const char* tasks;       // the variable with the tasks a node, for files with one line a host; nullptr: none
  bool has_columns;        // a line is "host slots queue ..."; otherwise a host, once for each of its tasks
};

// Takes the first --nnodes hosts of the file, or all. See AskAllocation. kInvalidArgument where the job's file is not
// named: on this machine alone it would be another job than was meant.
class NodeFile : public NodeSource {
 public:
  explicit NodeFile(const NodeFileSystem& system) : system_(system) {}
  Detection Detect(const Options& options) const override;
  bool IsScheduler() const override { return true; }
  absl::StatusOr<JobNodes> Find(const Options& options) const override;

 private:
  const NodeFileSystem& system_;
};

struct Pbs : NodeFile {
  Pbs();
};
struct GridEngine : NodeFile {
  GridEngine();
};
struct Oar : NodeFile {
  Oar();
};
struct Cobalt : NodeFile {
  Cobalt();
};

// The host file by which an MPI launcher would find its hosts, as in the launcher pod of an MPIJob. Slots in it are
// those of --hostfile.
class MpiHostFile : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  bool IsScheduler() const override { return true; }
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

// The hosts of "h1 4 h2 2", as in LSB_MCPU_HOSTS, with their slots. kInvalidArgument, which begins with `origin`: it is
// of another form. Pure.
absl::StatusOr<std::vector<HostEntry>> ParseHostsAndSlots(const std::string& text, const std::string& origin);

// An LSF job: its hosts, reached by blaunch.
class Lsf : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  bool IsScheduler() const override { return true; }
  // The first --nnodes hosts of LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS or LSB_HOSTS, or all. See AskAllocation.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
