// How a command gets to another host by ssh. Pure.
#pragma once

#include <string>
#include <vector>

#include "cohort/launcher/options/options.h"

namespace cohort::launcher {

// Quotes a word for a POSIX shell: what is not plainly harmless goes between single quotes.
std::string ShellQuote(const std::string& word);

// The arguments by which --ssh runs dlaunch with `arguments` on `host`: without questions to the user, without a
// terminal, giving up after ten seconds without a connection or an answer, four without a connection where it only asks
// what the host has, and by exec, so that no shell stands between sshd and it. `own_path` is where dlaunch lies there
// unless --agent-path says otherwise. What --ssh itself says of these times holds: ssh takes the first value.
std::vector<std::string> SshCommand(const Options& options, const std::string& own_path, const std::string& host,
                                    const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
