// Serves calls on CUDA memory by NCCL: one NCCL call, enqueued on the caller's stream. README.md has the rules.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/provider.h"

namespace cohort::comm {

struct NcclOptions {
  std::string nccl_library;  // Environment's COHORT_NCCL_LIBRARY; empty: the loaded or installed one
  std::string cuda_library;  // Environment's COHORT_CUDA_LIBRARY
};

// The provider of one group; `group` outlives it. Makes no communicator yet: the first call does, on its device, and
// blocks until all members have made theirs, driving the engine meanwhile, at most for the call's timeout. Later calls
// do not block. All calls of a group are on one device.
//
// Launch enqueues on AcceptedCall::stream before it returns. The Work is done when the device has finished the call;
// Work::WaitOnStream makes another stream wait for it without waiting here.
//
// kUnimplemented when built without NCCL, or when libnccl or libcudart is missing; names the remedy.
absl::StatusOr<std::unique_ptr<Provider>> MakeNcclProvider(const GroupContext* group, const NcclOptions& options);

}  // namespace cohort::comm
