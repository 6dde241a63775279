// Messages of the launcher's protocols as a fuzzer makes them up; what several fuzzers need.
#pragma once

#include "cohort/v1/agent.pb.h"
#include "tests/support/fuzz_input.h"

namespace cohort::launcher {

inline void TakeMembers(FuzzInput* input, v1::RankSet* set) {
  set->set_everyone(input->Bool());
  for (uint32_t i = input->Below(5); i > 0; --i) set->add_ranks(input->Number32());
}

inline void TakeFailure(FuzzInput* input, v1::GroupFailure* failure) {
  failure->set_group(input->Number());
  failure->set_epoch(input->Number());
  TakeMembers(input, failure->mutable_members());
  failure->set_code(input->Number32());
  failure->set_text(input->Text());
  failure->set_blamed_rank(input->Signed32());
  failure->set_from_rank(input->Signed32());
  failure->set_sequence(input->Number());
}

}  // namespace cohort::launcher
