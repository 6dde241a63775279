// What a host has to give, told by the dlaunch there: `dlaunch agent --inventory`, hidden.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// This machine's.
v1::NodeInventory TakeInventory();

// One line, which ParseInventory finds among whatever a remote shell's start-up files print around it.
std::string FormatInventory(const v1::NodeInventory& inventory);
// kNotFound: there is no such line; kInvalidArgument: its content is damaged. Pure.
absl::StatusOr<v1::NodeInventory> ParseInventory(const std::string& output);

// Prints this machine's inventory. Returns the process' exit status.
int PrintInventory();

}  // namespace cohort::launcher
