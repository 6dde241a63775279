#include "cohort/launcher/spawn/blaunch_command.h"

namespace cohort::launcher {

std::vector<std::string> BlaunchCommand(const Options& options, const std::string& own_path, const std::string& host,
                                        const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {"blaunch", host, options.agent_path.empty() ? own_path : options.agent_path};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace cohort::launcher
