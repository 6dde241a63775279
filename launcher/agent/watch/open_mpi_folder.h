// An agent's folder for the files that Open MPI makes in its ranks. Whichever process is killed, another removes it:
// the agent, its sentinel or its keeper.
#pragma once

#include <string>
#include <string_view>

namespace cohort::launcher {

// In TMPDIR; nobody has made it yet. `agent_address`: where its ranks find the agent, which nobody can guess. Empty:
// there is no folder for temporary files.
std::string OpenMpiFolder(std::string_view agent_address);

// Removes what OpenMpiFolder names, with all that is in it. Nothing is done where it is not there or another user's.
void RemoveOpenMpiFolder(std::string_view agent_address);

}  // namespace cohort::launcher
