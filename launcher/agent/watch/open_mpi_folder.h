// An agent's folders for what Open MPI makes in its ranks: one for files, and one for the memory that they share.
// Whichever process is killed, another removes them: the agent, its sentinel or its keeper.
#pragma once

#include <string>
#include <string_view>

namespace cohort::launcher {

struct OpenMpiFolders {
  // Nobody has made them yet. `agent_address`: where its ranks find the agent, which nobody can guess.
  static OpenMpiFolders Of(std::string_view agent_address);
  // Folders of that name inside these.
  OpenMpiFolders Within(const std::string& name) const;

  std::string files;   // in TMPDIR; empty: there is no folder for temporary files
  std::string memory;  // in /dev/shm
};

// Removes what OpenMpiFolders names, with all that is in it. Nothing is done where it is not there or another user's.
void RemoveOpenMpiFolders(std::string_view agent_address);

}  // namespace cohort::launcher
