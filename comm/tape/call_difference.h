// Compares a call of the program with the one on the tape.
#pragma once

#include <string>

#include "cohort/comm/provider/prepared_call.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/runtime/tape/tape_player.h"

namespace cohort::comm {

// Empty: `taped` is the same call, whatever the call sites. Otherwise both in words, with their sites.
std::string Difference(const GroupContext& group, const PreparedCall& call, const runtime::TapePlayer& player,
                       const runtime::TapedCall& taped);
// For a call that the tape does not have: the words for it, and for the latest call that it has.
std::string NoSuchCall(const GroupContext& group, const runtime::CallRecord& call, const runtime::TapePlayer& player);

}  // namespace cohort::comm
