// The driver of the fake device: it knows the kernels, compiled for the host, and runs their threads one
// after the other.
#include <cuda.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "cohort/comm/cuda/kernel_list.h"
#include "cohort/comm/cuda/reduce_body.h"
#include "cohort/comm/cuda/search_body.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/fake_nccl/fake_state.h"

namespace cohort::comm::cuda {
namespace {

struct Kernel {
  // The parameters are copied now; the result runs thread `thread` of `threads`.
  std::function<std::function<void(uint64_t thread, uint64_t threads)>(void** parameters)> bind;
};

template <typename Arguments, typename Body>
Kernel KernelOf(Body body) {
  return {[body](void** parameters) {
    return [body, arguments = *static_cast<const Arguments*>(parameters[0])](uint64_t thread, uint64_t threads) {
      body(arguments, thread, threads);
    };
  }};
}

const std::map<std::string, Kernel>& Kernels() {
#define COHORT_FOLD_KERNEL(name, body, ...) {"cohort_" #name, KernelOf<FoldArguments>(&body<__VA_ARGS__>)},
#define COHORT_CONVERT_KERNEL(name, body, ...) {"cohort_" #name, KernelOf<ConvertArguments>(&body<__VA_ARGS__>)},
#define COHORT_SEARCH_KERNEL(name, body, ...) {"cohort_" #name, KernelOf<SearchArguments>(&body<__VA_ARGS__>)},
  static const auto* const kernels = new std::map<std::string, Kernel>{COHORT_CUDA_FOLDS(
      COHORT_FOLD_KERNEL) COHORT_CUDA_CONVERSIONS(COHORT_CONVERT_KERNEL) COHORT_CUDA_SEARCHES(COHORT_SEARCH_KERNEL)};
#undef COHORT_FOLD_KERNEL
#undef COHORT_CONVERT_KERNEL
#undef COHORT_SEARCH_KERNEL
  return *kernels;
}

}  // namespace
}  // namespace cohort::comm::cuda

using cohort::comm::cuda::Kernel;
using cohort::comm::cuda::Kernels;

namespace {

std::atomic<bool> takes_kernels{true};

}  // namespace

extern "C" {

void FakeCudaTakeKernels(bool takes) { takes_kernels = takes; }

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (!takes_kernels) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  // The number that nvcc's fat binaries begin with.
  uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  if (magic != 0xba55ed50u) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(new char);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
  delete reinterpret_cast<char*>(module);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  const auto found = Kernels().find(name);
  if (found == Kernels().end()) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(const_cast<Kernel*>(&found->second));
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned block, unsigned, unsigned,
                        unsigned, CUstream stream, void** parameters, void**) {
  if (blocks == 0 || block == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto body = reinterpret_cast<const Kernel*>(function)->bind(parameters);
  const cohort::runtime::MutexLock lock(fake::GlobalState().mutex);
  fake::SubmitSimple(stream, [body, threads = uint64_t{blocks} * block] {
    for (uint64_t thread = 0; thread < threads; ++thread) body(thread, threads);
  });
  return CUDA_SUCCESS;
}
}
