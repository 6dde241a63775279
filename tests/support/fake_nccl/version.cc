// The version that a fake claims to be.
#include <nccl.h>

extern "C" ncclResult_t ncclGetVersion(int* version) {
  *version = COHORT_FAKE_NCCL_VERSION;
  return ncclSuccess;
}
