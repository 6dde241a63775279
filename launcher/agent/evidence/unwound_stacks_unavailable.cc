// In place of unwound_stacks.cc where elfutils/libdwfl.h is missing.
#include "cohort/launcher/agent/evidence/unwound_stacks.h"

namespace cohort::launcher {

bool HasUnwinder() { return false; }

std::string UnwindSnapshot(const ProcessSnapshot& /*snapshot*/) { return ""; }

}  // namespace cohort::launcher
