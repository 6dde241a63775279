// This machine's host name.
#pragma once

#include <string>

namespace cohort::launcher {

// Returns the name that gethostname gives; "localhost" if there is none.
std::string HostName();

}  // namespace cohort::launcher
