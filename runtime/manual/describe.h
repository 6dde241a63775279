// Reads the description of a command line out of its parser.
#pragma once

#include <string>

#include "cohort/runtime/manual/command.h"

namespace CLI {
class App;
}

namespace cohort::runtime {

// Options without a description are left out. One in no group, which --help leaves to another's text, is not. CLI11
// gives a command the footer that its program has by then, so a program sets its own when all of its commands are
// there.
ManualCommand Describe(const CLI::App& app, const std::string& name);

}  // namespace cohort::runtime
