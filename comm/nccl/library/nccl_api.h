// NCCL as a table of functions, opened at run time, the copy already loaded first: all ranks of a job, and libtorch in
// the same process, must use the same NCCL. What came after 2.18 is looked for and may be null.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/types.h"

// Exist since NCCL 2.18 at the latest.
#define COHORT_NCCL_FUNCTIONS(F) \
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
  F(ncclRedOpCreatePreMulSum)    \
  F(ncclRedOpDestroy)            \
  F(ncclAllReduce)               \
  F(ncclBroadcast)               \
  F(ncclReduce)                  \
  F(ncclAllGather)               \
  F(ncclReduceScatter)           \
  F(ncclSend)                    \
  F(ncclRecv)

// Came later, with their types: the headers of this build may be older than the library that it meets.
#define COHORT_NCCL_LATER_FUNCTIONS(F)                                                                             \
  /* 2.18.1 */                                                                                                     \
  F(ncclCommSplit, ncclResult_t (*)(ncclComm_t, int color, int key, ncclComm_t*, ncclConfig_t*))                   \
  /* 2.19.1 */                                                                                                     \
  F(ncclCommRegister, ncclResult_t (*)(ncclComm_t, void*, size_t, void** handle))                                  \
  F(ncclCommDeregister, ncclResult_t (*)(ncclComm_t, void* handle))                                                \
  /* 2.27.3 */                                                                                                     \
  F(ncclCommShrink, ncclResult_t (*)(ncclComm_t, int* excluded, int count, ncclComm_t*, ncclConfig_t*, int flags)) \
  F(ncclCommWindowRegister, ncclResult_t (*)(ncclComm_t, void*, size_t, void** window, int flags))                 \
  F(ncclCommWindowDeregister, ncclResult_t (*)(ncclComm_t, void* window))                                          \
  /* 2.28.3 */                                                                                                     \
  F(ncclAlltoAll, ncclResult_t (*)(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))          \
  F(ncclGather, ncclResult_t (*)(const void*, void*, size_t, ncclDataType_t, int root, ncclComm_t, cudaStream_t))  \
  F(ncclScatter, ncclResult_t (*)(const void*, void*, size_t, ncclDataType_t, int root, ncclComm_t, cudaStream_t)) \
  /* 2.28.7 */                                                                                                     \
  F(ncclCommRevoke, ncclResult_t (*)(ncclComm_t, int flags))

namespace cohort::comm::nccl {

inline constexpr int kOldestVersion = 21800;  // 2.18.0

// The abilities that all members have, as they have agreed.
struct Abilities {
  bool float8 = false;   // NCCL reduces 8-bit floating-point numbers
  bool kernels = false;  // every device has taken our reduction kernels
  bool stops = false;    // NCCL can stop a blocking communicator (NcclCommunicator::MakeLauncher)
};

struct NcclApi {
#define COHORT_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  COHORT_NCCL_FUNCTIONS(COHORT_NCCL_MEMBER)
#undef COHORT_NCCL_MEMBER
#define COHORT_NCCL_MEMBER(name, type) std::type_identity_t<type> name = nullptr;
  COHORT_NCCL_LATER_FUNCTIONS(COHORT_NCCL_MEMBER)
#undef COHORT_NCCL_MEMBER
  int version = 0;   // 22809
  std::string path;  // of the library

  // The result as a status, with NCCL's own explanation; OK for ncclSuccess and ncclInProgress.
  absl::Status ToStatus(ncclResult_t result, ncclComm_t communicator, const std::string& doing) const;
};

// "2.28.9" of 22809.
std::string VersionText(int version);

// Opens libnccl: `library` if it is not empty, else a copy that the process has already loaded (libtorch's), else the
// installed one. It stays loaded. Thread-safe; the first success is kept.
// kUnimplemented when libnccl or one of its functions is missing or it is too old; names it and the remedy.
absl::StatusOr<const NcclApi*> LoadNccl(const std::string& library);

// Nothing for what NCCL has no word for: 16-bit integers, bit operations. 8-bit floating-point numbers came with 2.24.
std::optional<ncclDataType_t> ToNccl(DataType dtype);
std::optional<ncclRedOp_t> ToNccl(ReduceOp op);
inline constexpr int kFloat8Version = 22400;

// A value of a type, as NCCL reads it.
struct Scalar {
  alignas(8) std::byte bytes[8] = {};
};
// The factor as an element of the type, rounded to it: FactorFits(dtype, factor).
Scalar ScalarOf(DataType dtype, double factor);

}  // namespace cohort::comm::nccl
