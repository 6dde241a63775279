#include "cohort/launcher/spawn/ssh_command.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "cohort/runtime/manual/shell_word.h"

namespace cohort::launcher {

std::string ShellQuote(const std::string& word) {
  const bool harmless = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string("_-./=:,+@%").find(c) != std::string::npos;
  });
  return harmless ? word : runtime::ShellWord(word);
}

std::vector<std::string> SshCommand(const Options& options, const std::string& own_path, const std::string& host,
                                    const std::vector<std::string>& arguments) {
  std::vector<std::string> command;
  std::istringstream words(options.ssh_command);
  for (std::string word; words >> word;) command.push_back(word);
  // A host that drops what comes to it in silence is refused before anything is started, within five seconds. One that
  // has answered gets longer: it may be busy by then, and it would cost a job.
  const bool asks = std::find(arguments.begin(), arguments.end(), "--inventory") != arguments.end();
  for (const char* option : {"BatchMode=yes", asks ? "ConnectTimeout=4" : "ConnectTimeout=10", "ServerAliveInterval=5",
                             "ServerAliveCountMax=2"}) {
    command.insert(command.end(), {"-o", option});
  }
  std::string remote = "exec " + ShellQuote(options.agent_path.empty() ? own_path : options.agent_path);
  for (const std::string& argument : arguments) remote += " " + ShellQuote(argument);
  command.insert(command.end(), {"-T", host, remote});
  return command;
}

}  // namespace cohort::launcher
