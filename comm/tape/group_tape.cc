#include "cohort/comm/tape/group_tape.h"

#include "cohort/comm/tape/recording.h"
#include "cohort/comm/tape/replaying.h"
#include "cohort/runtime/runtime.h"
#include "cohort/runtime/tape/tape.h"

namespace cohort::comm {

std::unique_ptr<GroupTape> GroupTape::Of(const GroupContext& group) {
  const runtime::Tape* const tape = runtime::Tape::Of(group.runtime->segment());
  if (tape == nullptr) return nullptr;
  if (tape->player() != nullptr) return std::make_unique<GroupReplay>(group, *tape->player());
  return std::make_unique<GroupRecording>(group, *tape->writer());
}

}  // namespace cohort::comm
