// Programs that Python runs: a module (-m) or a script.
#pragma once

#include <string>
#include <vector>

namespace cohort::launcher {

// The command as it is started. With `is_module` it is `python3 -u -m MODULE`. A program whose name ends in ".py",
// ".pyc", ".pyz", ".pyzw" or ".zip" is run by `python3 -u`, whatever its first line and its mode say, as torchrun does.
// Other commands stay as they are. -u: lines of ranks come when they are printed, and the last ones are not lost with
// the rank.
std::vector<std::string> AsPythonProgram(std::vector<std::string> command, bool is_module);

}  // namespace cohort::launcher
