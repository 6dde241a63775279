#include "comm/nccl/nccl_api.h"

#include <dlfcn.h>

#include "runtime/base/mutex.h"

namespace cohort::comm::nccl {
namespace {

constexpr char kSoname[] = "libnccl.so.2";

absl::Status Missing(const std::string& what) {
  return absl::UnimplementedError(what +
                                  ". Calls on CUDA memory need NCCL 2.14 or newer: install libnccl2, or name it in "
                                  "COHORT_NCCL_LIBRARY; or copy to host memory first.");
}

absl::StatusOr<NcclApi> Open(const std::string& library) {
  void* handle = nullptr;
  if (library.empty()) handle = dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) handle = dlopen(library.empty() ? kSoname : library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Missing(std::string("NCCL could not be loaded (") + dlerror() + ")");
  NcclApi api;
#define COHORT_NCCL_LOAD(name)                                                 \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(handle, #name));       \
  if (api.name == nullptr) {                                                   \
    dlclose(handle);                                                           \
    return Missing("the NCCL library that was loaded has no function " #name); \
  }
  COHORT_NCCL_FUNCTIONS(COHORT_NCCL_LOAD)
#undef COHORT_NCCL_LOAD
  if (api.ncclGetVersion(&api.version) != ncclSuccess) return Missing("the NCCL library does not tell its version");
  return api;
}

}  // namespace

absl::Status NcclApi::ToStatus(ncclResult_t result, ncclComm_t communicator, const std::string& doing) const {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  std::string text = doing + ": " + ncclGetErrorString(result);
  const char* last = ncclGetLastError(communicator);
  if (last != nullptr && *last != '\0') text += std::string(", ") + last;
  text += " (NCCL)";
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::InvalidArgumentError(text);
    case ncclRemoteError:
    case ncclSystemError:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::StatusOr<const NcclApi*> LoadNccl(const std::string& library) {
  static runtime::Mutex mutex;
  static const NcclApi* loaded = nullptr;
  const runtime::MutexLock lock(mutex);
  if (loaded == nullptr) {
    const absl::StatusOr<NcclApi> api = Open(library);
    if (!api.ok()) return api.status();
    loaded = new NcclApi(*api);
  }
  return loaded;
}

absl::StatusOr<ncclDataType_t> ToNccl(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return ncclInt8;
    case DataType::kUint8:
      return ncclUint8;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kUint32:
      return ncclUint32;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kUint64:
      return ncclUint64;
    case DataType::kFloat16:
      return ncclFloat16;
    case DataType::kBFloat16:
      return ncclBfloat16;
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kFloat64:
      return ncclFloat64;
    case DataType::kInt16:
    case DataType::kUint16:
      break;
  }
  return absl::UnimplementedError("NCCL has no " + std::string(Name(dtype)) +
                                  ": convert to int32, or copy to host memory first");
}

absl::StatusOr<ncclRedOp_t> ToNccl(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kProduct:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kAvg:
      return ncclAvg;
  }
  return absl::UnimplementedError("NCCL has no reduction " + std::string(Name(op)));
}

}  // namespace cohort::comm::nccl
