// The resources of a host, told by the dlaunch there: `dlaunch agent --inventory`, hidden.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/options/options.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// This machine's.
v1::NodeInventory TakeInventory();

// One line, which ParseInventory finds among whatever a remote shell's start-up files print around it.
std::string FormatInventory(const v1::NodeInventory& inventory);
// kNotFound: there is no such line; kInvalidArgument: its content is damaged. What people will see of it can't steer a
// terminal (printable.h). Pure.
absl::StatusOr<v1::NodeInventory> ParseInventory(const std::string& output);

// The resources of the node that told this, for a job with these options, under the plan's name. kInvalidArgument,
// to be read after the node's name: another version, no part to take, no network that --iface names, CPUs that are no
// list. Pure.
absl::StatusOr<NodeResources> ResourcesOf(const v1::NodeInventory& inventory, const Options& options,
                                          const std::string& name);

// Prints this machine's inventory. Returns the process' exit status.
int PrintInventory();

}  // namespace cohort::launcher
