// The main() of a command-line program: arguments, standard streams and exit status, the same for all of them.
//
// Exit status: 0 after --help, --version and success, 2 for a command line that cannot work, else what the program
// returns, but 1 where the standard output could not be written.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace cohort::tools {

// Runs `body` and returns its result. Returns 1 when output was lost (a full disk, a closed output), and says so on the
// standard error output. It first opens standard streams that are closed. Otherwise a file or socket of the program
// would get their numbers, and with them the output. SIGXFSZ is ignored: a write beyond a limit on files' size fails
// with an error instead. Call it first of all in main().
int RunProgram(const std::string& name, const std::function<int()>& body);

// The text with control characters and other bytes that could steer a terminal, or pass for a line of their own, as
// "\x1b".
std::string Escaped(std::string_view text);

// Why a program ends with its command line: after --help, --version or an error.
struct CommandLineEnd {
  int status = 0;    // 0 or 2
  std::string text;  // for the standard output; for the standard error output where status is 2
};

// Reads the command line into what `app` was given; nothing where the program goes on. Adds --version, and
// `--describe FORM` (runtime/manual/forms.h) where nothing else is given. An error begins
// with the program's name and ends with where its help is. Control characters of arguments are escaped in it.
std::optional<CommandLineEnd> ReadCommandLine(CLI::App& app, int argc, const char* const* argv);
// The same; prints the text and returns the exit status.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv);

// Hands on what was printed so far. Ends the program with status 1, and a message, when that fails: a measurement of
// minutes need not go on when nobody can see it.
void FlushOutput(const std::string& name);

}  // namespace cohort::tools
