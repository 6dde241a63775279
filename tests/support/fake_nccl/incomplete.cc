// A library of an NCCL that is too old: it lacks what the provider needs.
#include <nccl.h>

extern "C" ncclResult_t ncclGetVersion(int* version) {
  *version = 20708;
  return ncclSuccess;
}
