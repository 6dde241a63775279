// This machine's host name.
#pragma once

#include <string>

namespace cohort::launcher {

// As gethostname tells it; "localhost" where there is none.
std::string HostName();

}  // namespace cohort::launcher
