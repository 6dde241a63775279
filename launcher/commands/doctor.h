// `dlaunch doctor`: what of this machine and its surroundings keeps jobs from running, or from running well.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

struct Finding {
  enum class Level { kGood, kWarning, kBad };
  Level level = Level::kGood;
  std::string subject;  // "open files"
  std::string text;     // what was found
  std::string remedy;   // empty where nothing is to be done
  std::optional<Remedy> id = {};
};

// Everything that doctor looks at. Its judgement is a function of this.
struct MachineFacts {
  int cpus = 0;
  int cpus_paid = 0;  // by the cgroups' quota; as many as `cpus` where there is none
  int gpus = 0;
  std::string node_error;             // why this machine can't take part in a job; empty: it can
  unsigned long long open_files = 0;  // limits; ~0: none
  unsigned long long processes = 0;
  std::vector<std::string> addresses;  // that other machines may reach
  bool loopback = false;               // it is up
  bool memfd = false;
  bool pidfd = false;
  std::vector<std::string> slower_without;  // calls that this kernel lacks or a filter refuses, and jobs can do without
  int ptrace_scope = 0;                     // /proc/sys/kernel/yama/ptrace_scope; 0: also where there is none
  bool ssh = false;                         // in PATH
  // A library that ranks load when they need it, as they would find it.
  struct Library {
    std::string version;  // "1.13.1"
    std::string error;    // why it can't be loaded; empty: it can
  };
  Library ucx;
  Library nccl;  // looked for where there are GPUs
};

MachineFacts LookAtThisMachine();

// The findings, in the order in which they are printed. Pure.
std::vector<Finding> Judge(const MachineFacts& facts);

// Sums the findings up in a line. Pure.
std::string VerdictOn(const std::vector<Finding>& findings);

// The findings as `doctor --json` prints them. Pure.
std::string DoctorJson(const std::vector<Finding>& findings, const std::vector<ExplainedSource>& sources);

runtime::ManualCommand DoctorManual();
// Prints the findings, which source of nodes a job would have, and how a job of two ranks fared, and the verdict.
// Returns the exit status: 0, or 1 when something keeps jobs from running.
int RunDoctorCommand(const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
