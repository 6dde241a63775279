// The main() of a command-line program: arguments, standard streams and exit status, the same for all of them.
//
// Exit status: 0 after --help and success, 2 for a command line that cannot work, else what the program returns, but 1
// where the standard output could not be written.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace cohort::tools {

// What `body` returns, or 1 when something that it printed was lost (a full disk, a closed output), which is told on
// the standard error output. Standard streams that are closed are opened first, so that no file or socket of the
// program gets their numbers and with them what is printed. SIGXFSZ is ignored: what a limit on files' size forbids is
// an error of the one who writes. Call it first of all in main().
int RunProgram(const std::string& name, const std::function<int()>& body);

// Reads the command line; the exit status where that is all there is to do (help, or an error, which is printed).
std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv);

// Hands on what was printed so far. Ends the program with status 1, and a message, when that fails: whoever measures
// for minutes need not go on when nobody can see it.
void FlushOutput(const std::string& name);

}  // namespace cohort::tools
