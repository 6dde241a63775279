// The exception that a Python program ended with, as the traceback among its last lines tells.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace cohort::launcher {

struct PythonException {
  std::string text;   // the first line: "ValueError: no such file"
  std::string place;  // "train.py:12", in the innermost frame outside of installed packages; empty: typed code
};

// Reads the last traceback in `lines`, whose beginning may be cut off. Understands the prefix "[rank2]: " that PyTorch
// puts before each line. Nothing where there is no traceback. Pure.
std::optional<PythonException> FindPythonException(const std::vector<std::string>& lines);

}  // namespace cohort::launcher
