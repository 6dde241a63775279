// The calls by which OpenPMIx's server asks its host, as events of the namespace concerned (open_pmix_endpoint.h).
#pragma once

#include <pmix_server.h>

namespace cohort::launcher {

pmix_server_module_t PmixCallbacks();

}  // namespace cohort::launcher
