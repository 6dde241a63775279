#include "cohort/comm/nccl/library/nccl_api.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "cohort/comm/cuda/reduce_arithmetic.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::comm::nccl {
namespace {

constexpr char kSoname[] = "libnccl.so.2";

absl::Status Missing(const std::string& what) {
  return absl::UnimplementedError(what +
                                  ". Calls on CUDA memory need NCCL 2.18 or newer: install libnccl2, or name it in "
                                  "COHORT_NCCL_LIBRARY; or copy to host memory first.");
}

// The file that a function came from.
std::string PathOf(void* function) {
  Dl_info info;
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : kSoname;
}

absl::Status Probe(void* handle, NcclApi* api) {
  const auto get_version = reinterpret_cast<decltype(&ncclGetVersion)>(dlsym(handle, "ncclGetVersion"));
  if (get_version == nullptr || get_version(&api->version) != ncclSuccess) {
    return Missing("the NCCL library does not tell its version");
  }
  api->path = PathOf(reinterpret_cast<void*>(get_version));
  if (api->version < kOldestVersion) {
    return Missing("NCCL " + VersionText(api->version) + " (" + api->path + ") is too old");
  }
#define COHORT_NCCL_LOAD(name)                                                                           \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(handle, #name));                               \
  if (api->name == nullptr) {                                                                            \
    return Missing("NCCL " + VersionText(api->version) + " (" + api->path + ") has no function " #name); \
  }
  COHORT_NCCL_FUNCTIONS(COHORT_NCCL_LOAD)
#undef COHORT_NCCL_LOAD
#define COHORT_NCCL_LOAD(name, type) api->name = reinterpret_cast<decltype(api->name)>(dlsym(handle, #name));
  COHORT_NCCL_LATER_FUNCTIONS(COHORT_NCCL_LOAD)
#undef COHORT_NCCL_LOAD
  return absl::OkStatus();
}

absl::StatusOr<NcclApi> Open(const std::string& library) {
  void* handle = nullptr;
  if (library.empty()) handle = dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) handle = dlopen(library.empty() ? kSoname : library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Missing(std::string("NCCL could not be loaded (") + dlerror() + ")");
  NcclApi api;
  if (absl::Status status = Probe(handle, &api); !status.ok()) {
    dlclose(handle);
    return status;
  }
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

std::string VersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::optional<ncclDataType_t> ToNccl(DataType dtype) {
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
    // By value: the headers of this build may be older.
    case DataType::kFloat8E4M3:
      return static_cast<ncclDataType_t>(10);
    case DataType::kFloat8E5M2:
      return static_cast<ncclDataType_t>(11);
    default:
      return std::nullopt;
  }
}

Scalar ScalarOf(DataType dtype, double factor) {
  Scalar scalar;
  const auto put = [&](auto value) { std::memcpy(scalar.bytes, &value, sizeof value); };
  switch (dtype) {
    case DataType::kFloat64:
      put(factor);
      break;
    case DataType::kFloat32:
      put(static_cast<float>(factor));
      break;
    case DataType::kFloat16:
      put(cuda::Float16::Encode(static_cast<float>(factor)));
      break;
    case DataType::kBFloat16:
      put(cuda::BFloat16::Encode(static_cast<float>(factor)));
      break;
    case DataType::kUint64:
      put(static_cast<uint64_t>(factor));
      break;
    default:  // narrower integers are its low bytes
      put(static_cast<int64_t>(factor));
      break;
  }
  return scalar;
}

std::optional<ncclRedOp_t> ToNccl(ReduceOp op) {
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
    default:
      return std::nullopt;
  }
}

}  // namespace cohort::comm::nccl
