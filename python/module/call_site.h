// The place of a call in Python code, as the source location that communicators put into messages and black boxes.
#pragma once

#include <source_location>
#include <string>
#include <vector>

#include "cohort/python/module/python.h"

namespace cohort::python {

// Names the folders whose frames are not the user's: this package and torch's. Needs the GIL.
void SetInternalFolders(std::vector<std::string> folders);

// File and line of the innermost frame of the calling thread that lies in no internal folder. Where there is none (a
// thread of autograd), of the innermost frame. The names live as long as the process. Needs the GIL.
std::source_location CallSite();

}  // namespace cohort::python
