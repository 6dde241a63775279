// A libnccl and libcudart in one shared library, for machines without a GPU: device memory is host memory, ranks are
// threads of one process, streams are lists of what has not finished. It does the arithmetic, and it can be told to go
// wrong. Tests open it with dlopen, as the provider does, and find FakeNcclConfigure by dlsym.
#pragma once

extern "C" {

enum FakeNcclMode {
  kFakeWorks = 0,
  kFakeCallError = 1,   // the k-th call returns ncclInvalidUsage
  kFakeAsyncError = 2,  // the k-th call never finishes and its communicator reports ncclRemoteError
  kFakeHang = 3,        // the k-th call never finishes
  kFakeSetupHang = 4,   // the k-th call stays in ncclInProgress
  kFakeInitHang = 5,    // creation stays in ncclInProgress
  kFakeInitError = 6,   // creation returns ncclSystemError
  kFakeSlowSetup = 7,   // every call is in progress for a few polls first
};

// Applies to calls made from now on, counted from 1 over all communicators of `rank`; -1: of every rank. abort_hangs:
// ncclCommAbort does not return for 30 s.
void FakeNcclConfigure(FakeNcclMode mode, int k, int rank, bool abort_hangs);
// How many communicators exist that were neither destroyed nor aborted.
int FakeNcclLiveCommunicators();
}
