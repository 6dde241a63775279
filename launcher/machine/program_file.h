// Says why a file cannot be executed, and how it is started instead. Reads a few hundred bytes of it.
#pragma once

#include <string>

namespace cohort::launcher {

// The trouble with the content of the file at `path`, and the remedy, as the end of a sentence: "its first line ends
// with a carriage return, ...". Empty where its content shows none.
std::string TroubleWithProgram(const std::string& path);

// Whether its first line names an interpreter and ends with a carriage return: no kernel finds that interpreter, and
// `env` finds no such program.
bool HasWindowsFirstLine(const std::string& path);

// Advice for a file without the permission to execute it: "use chmod +x, or name its interpreter first: bash run.sh".
// `name` is as the user typed it.
std::string InsteadOfExecuting(const std::string& path, const std::string& name);

}  // namespace cohort::launcher
