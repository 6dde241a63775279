// Stacks of Python threads as people read them. Pure.
#pragma once

#include <string>
#include <vector>

#include "cohort/launcher/agent/stacks/python_threads.h"

namespace cohort::launcher {

// The threads as text, the main one first, without what differs from rank to rank.
std::string FormatThreads(const std::vector<PythonThread>& threads);

// The place of the main thread, innermost frame first: "/x/train.py:30 in load_batch". At most three lines: the two
// innermost, and, where both are of Python's libraries, the innermost of the program's own. Empty: it has no frame.
std::vector<std::string> InnermostFrames(const std::vector<PythonThread>& threads);

// The innermost frame of the main thread that is the program's own, or of any where it has none: "/x/train.py:30 in
// load". Empty: there is no frame.
std::string OwnFrame(const std::vector<PythonThread>& threads);

}  // namespace cohort::launcher
