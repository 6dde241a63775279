// Records the calls of a group.
#pragma once

#include <cstdint>
#include <memory>

#include "cohort/comm/provider/provider.h"
#include "cohort/comm/tape/group_tape.h"
#include "cohort/runtime/tape/tape_writer.h"

namespace cohort::comm {

// A call's result is copied before its Work is done, so that the program can't change it meanwhile. So a call that is
// not done at once gets a Work of ours, which is done after the provider's.
class GroupRecording final : public GroupTape {
 public:
  // Both outlive it.
  GroupRecording(const GroupContext& group, runtime::TapeWriter& tape);
  std::unique_ptr<Provider> Around(std::unique_ptr<Provider> real) override;
  void OnFailure(const absl::Status& status) override;

 private:
  const GroupContext& group_;
  runtime::TapeWriter& tape_;
  const uint32_t number_;  // of the group on the tape
};

}  // namespace cohort::comm
