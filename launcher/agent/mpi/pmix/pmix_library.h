// The functions of OpenPMIx's library, opened at run time.
#pragma once

#include <pmix.h>
#include <pmix_server.h>

#include "absl/status/statusor.h"

namespace cohort::launcher {

struct PmixLibrary {
  decltype(&PMIx_server_init) server_init = nullptr;
  decltype(&PMIx_server_register_nspace) register_nspace = nullptr;
  decltype(&PMIx_server_deregister_nspace) deregister_nspace = nullptr;
  decltype(&PMIx_server_register_client) register_client = nullptr;
  decltype(&PMIx_server_setup_fork) setup_fork = nullptr;
  decltype(&PMIx_server_dmodex_request) dmodex_request = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
  decltype(&PMIx_Get_version) get_version = nullptr;

  // kNotFound with the remedy: it is not installed. It is opened once and stays.
  static absl::StatusOr<const PmixLibrary*> Open();
};

}  // namespace cohort::launcher
