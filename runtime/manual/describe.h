// Reads the description of a command line out of its parser.
#pragma once

#include <string>

#include "cohort/runtime/manual/command.h"

namespace CLI {
class App;
}

namespace cohort::runtime {

// Options without help (which stand in another's text) and those that --help does not show are left out, but --help and
// --version. CLI11 gives a command the footer that its program has by then, so a program sets its own when all of its
// commands are there.
ManualCommand Describe(const CLI::App& app, const std::string& name);

}  // namespace cohort::runtime
