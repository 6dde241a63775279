#include "cohort/comm/cuda/cuda_api.h"

#include <dlfcn.h>

#include "cohort/runtime/base/mutex.h"

namespace cohort::comm::cuda {
namespace {

constexpr const char* kSonames[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"};

absl::Status Missing(const std::string& what) {
  return absl::UnimplementedError(what +
                                  ". CUDA memory needs the CUDA runtime: install libcudart, or name it in "
                                  "COHORT_CUDA_LIBRARY.");
}

void* OpenLibrary(const std::string& library) {
  if (!library.empty()) return dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  for (const int loaded_only : {RTLD_NOLOAD, 0}) {
    for (const char* soname : kSonames) {
      if (void* handle = dlopen(soname, RTLD_NOW | RTLD_LOCAL | loaded_only); handle != nullptr) return handle;
    }
  }
  return nullptr;
}

absl::StatusOr<CudaApi> Open(const std::string& library) {
  void* handle = OpenLibrary(library);
  if (handle == nullptr) return Missing(std::string("the CUDA runtime could not be loaded (") + dlerror() + ")");
  CudaApi api;
#define COHORT_CUDA_LOAD(name)                                                 \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(handle, #name));       \
  if (api.name == nullptr) {                                                   \
    dlclose(handle);                                                           \
    return Missing("the CUDA runtime that was loaded has no function " #name); \
  }
  COHORT_CUDA_FUNCTIONS(COHORT_CUDA_LOAD)
#undef COHORT_CUDA_LOAD
  // A library that stands for CUDA brings its own driver.
  void* driver = dlsym(handle, "cuLaunchKernel") != nullptr ? handle : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define COHORT_CUDA_LOAD(name) \
  api.name = driver == nullptr ? nullptr : reinterpret_cast<decltype(api.name)>(dlsym(driver, #name));
  COHORT_CUDA_DRIVER_FUNCTIONS(COHORT_CUDA_LOAD)
#undef COHORT_CUDA_LOAD
  return api;
}

}  // namespace

absl::Status CudaApi::ToStatus(cudaError_t error, const std::string& doing) const {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = doing + ": " + cudaGetErrorString(error) + " (CUDA)";
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  if (error == cudaErrorInvalidValue || error == cudaErrorInvalidDevice) return absl::InvalidArgumentError(text);
  return absl::InternalError(text);
}

absl::StatusOr<const CudaApi*> LoadCuda(const std::string& library) {
  static runtime::Mutex mutex;
  static const CudaApi* loaded = nullptr;
  const runtime::MutexLock lock(mutex);
  if (loaded == nullptr) {
    const absl::StatusOr<CudaApi> api = Open(library);
    if (!api.ok()) return api.status();
    loaded = new CudaApi(*api);
  }
  return loaded;
}

}  // namespace cohort::comm::cuda
