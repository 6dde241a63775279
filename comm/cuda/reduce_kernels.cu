// The kernels, compiled to a fat binary that the library carries (CMakeLists.txt) and CUDA's driver loads.
#include "cohort/comm/cuda/kernel_list.h"
#include "cohort/comm/cuda/reduce_body.h"
#include "cohort/comm/cuda/search_body.h"

namespace cohort::comm::cuda {

#define COHORT_KERNEL(name, arguments_type, body, ...)                                                               \
  extern "C" __global__ void __launch_bounds__(256) name(arguments_type arguments) {                                 \
    body<__VA_ARGS__>(arguments, uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, uint64_t{gridDim.x} * blockDim.x); \
  }
#define COHORT_FOLD_KERNEL(name, body, ...) COHORT_KERNEL(cohort_##name, FoldArguments, body, __VA_ARGS__)
#define COHORT_CONVERT_KERNEL(name, body, ...) COHORT_KERNEL(cohort_##name, ConvertArguments, body, __VA_ARGS__)
#define COHORT_SEARCH_KERNEL(name, body, ...) COHORT_KERNEL(cohort_##name, SearchArguments, body, __VA_ARGS__)

COHORT_CUDA_FOLDS(COHORT_FOLD_KERNEL)
COHORT_CUDA_CONVERSIONS(COHORT_CONVERT_KERNEL)
COHORT_CUDA_SEARCHES(COHORT_SEARCH_KERNEL)

}  // namespace cohort::comm::cuda
