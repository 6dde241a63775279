// Which of a rank's processes a signal is sent to. Pure: the processes are given.
//
// The program that trains may stand behind wrappers (shells, env, timeout, scripts), and may have helpers (DataLoader's
// workers) whose death it takes for a failure. So an order to end goes down from the rank's first process:
//
//   it ends by the signal, or ignores it      its children get the signal too: nobody else passes it on
//   it handles the signal                     it decides about its children: a program with helpers, torchrun, timeout
//   a shell with a trap                       its children in the foreground get it too: the trap waits for their end
//   it made the terminal of a child           it gets no signal: the terminal's end would end the child
//   it reads what another of them prints      it gets no signal, as it ends with the other's output: tee, sed
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "cohort/launcher/agent/watch/rank_members.h"

namespace cohort::launcher {

// The members that are to be sent SIGTERM, parents before their children. `told` is whether one has had it before: a
// shell's later children are its trap's. `late`: half of the time is over. Then a script of Python, Perl, Ruby or Node
// that handles the signal and still waits for its only child has kept it from it.
std::vector<const RankMember*> WhoIsToEnd(const RankMembers& members,
                                          const std::function<bool(const RankMember&)>& told, bool late);

// The members that handle a notice (SIGUSR1, SIGUSR2): it ends those that do not, and wrappers are not meant. Empty:
// nobody does.
std::vector<const RankMember*> WhoTakesNotice(const RankMembers& members, int signal);

// Whether it reads from a pipe as its standard input, and nobody but another member or a process that has gone writes
// there. It does not handle SIGTERM.
bool IsFilter(const RankMember& member);

}  // namespace cohort::launcher
