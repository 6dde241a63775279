// NCCL as a table of functions, opened at run time, the copy already loaded first: all ranks of a job, and libtorch in
// the same process, must use the same NCCL.
#pragma once

#include <nccl.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/types.h"

// Exist since NCCL 2.14, the first with communicators that do not block.
#define COHORT_NCCL_FUNCTIONS(F) \
  F(ncclGetVersion)              \
  F(ncclGetUniqueId)             \
  F(ncclCommInitRankConfig)      \
  F(ncclCommFinalize)            \
  F(ncclCommDestroy)             \
  F(ncclCommAbort)               \
  F(ncclCommGetAsyncError)       \
  F(ncclGetErrorString)          \
  F(ncclGetLastError)            \
  F(ncclGroupStart)              \
  F(ncclGroupEnd)                \
  F(ncclAllReduce)               \
  F(ncclBroadcast)               \
  F(ncclReduce)                  \
  F(ncclAllGather)               \
  F(ncclReduceScatter)           \
  F(ncclSend)                    \
  F(ncclRecv)

namespace cohort::comm::nccl {

struct NcclApi {
#define COHORT_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  COHORT_NCCL_FUNCTIONS(COHORT_NCCL_MEMBER)
#undef COHORT_NCCL_MEMBER
  int version = 0;  // 22809

  // The result as a status, with NCCL's own explanation; OK for ncclSuccess and ncclInProgress.
  absl::Status ToStatus(ncclResult_t result, ncclComm_t communicator, const std::string& doing) const;
};

// As LoadCuda. kUnimplemented when libnccl or one of its functions is missing.
absl::StatusOr<const NcclApi*> LoadNccl(const std::string& library);

// kUnimplemented, with the remedy, for what NCCL can't do.
absl::StatusOr<ncclDataType_t> ToNccl(DataType dtype);
absl::StatusOr<ncclRedOp_t> ToNccl(ReduceOp op);

}  // namespace cohort::comm::nccl
