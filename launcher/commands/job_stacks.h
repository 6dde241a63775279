// `dlaunch stacks`: where every rank of a job is.
#pragma once

#include <string>
#include <vector>

#include "cohort/runtime/manual/command.h"
#include "cohort/v1/job.pb.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace cohort::launcher {

runtime::ManualCommand StacksManual();
// Returns the exit status.
int RunStacksCommand(const std::vector<std::string>& arguments);

// The text for people, of stacks in the order of ranks: ranks at the same place together. Pure.
std::string FormatStacks(const google::protobuf::RepeatedPtrField<v1::RankStack>& stacks);

}  // namespace cohort::launcher
