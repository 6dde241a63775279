// UCX as a table of functions, opened at run time: one binary runs where UCX is absent, and a process that has already
// loaded a UCX (an MPI, a site's CUDA-enabled build) keeps that one.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "absl/status/statusor.h"

// Every function of libucp and libucs that the transport calls. All exist since UCX 1.11.
#define COHORT_UCP_FUNCTIONS(F)     \
  F(ucp_get_version)                \
  F(ucp_config_read)                \
  F(ucp_config_modify)              \
  F(ucp_config_release)             \
  F(ucp_init_version)               \
  F(ucp_cleanup)                    \
  F(ucp_worker_create)              \
  F(ucp_worker_destroy)             \
  F(ucp_worker_flush_nbx)           \
  F(ucp_worker_get_address)         \
  F(ucp_worker_release_address)     \
  F(ucp_worker_progress)            \
  F(ucp_worker_get_efd)             \
  F(ucp_worker_arm)                 \
  F(ucp_worker_signal)              \
  F(ucp_worker_set_am_recv_handler) \
  F(ucp_ep_create)                  \
  F(ucp_ep_close_nbx)               \
  F(ucp_am_send_nbx)                \
  F(ucp_am_recv_data_nbx)           \
  F(ucp_am_data_release)            \
  F(ucp_request_check_status)       \
  F(ucp_request_free)               \
  F(ucs_status_string)

namespace cohort::comm::ucx {

struct UcpApi {
#define COHORT_UCP_MEMBER(name) decltype(&::name) name = nullptr;
  COHORT_UCP_FUNCTIONS(COHORT_UCP_MEMBER)
#undef COHORT_UCP_MEMBER
  int version_major = 0;
  int version_minor = 0;
};

// Opens libucp: `library` if it is not empty (a path or soname), else the copy that the process has already loaded,
// else libucp.so.0. The library stays loaded until the process ends. When it is this call that loads it, UCX is kept
// from installing signal handlers, patching memory functions and logging below warnings: UCX_* variables are set in
// this process where the user has not set them, since UCX reads them in its constructor only. Thread-safe among its
// callers; the first success is kept and later calls return it.
//
// kUnimplemented when the library or one of its functions is missing; names it and the remedy.
absl::StatusOr<const UcpApi*> LoadUcp(const std::string& library);

}  // namespace cohort::comm::ucx
