// Options of torchrun that say where its processes meet and how they are started and watched. dlaunch takes them, so
// that a command line need not be rewritten, and they change nothing: ranks find each other through their agents.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace cohort::launcher {

// Adds them to the parser, with dashes and with underscores. --help lists none of them.
void AddIdleOptions(CLI::App* app);

// The names of those that the parsed command line has, with dashes.
std::vector<std::string> GivenIdleOptions(const CLI::App& app);

// The line that says so, without its end; empty where `names` is.
std::string DescribeIdleOptions(const std::vector<std::string>& names);

}  // namespace cohort::launcher
