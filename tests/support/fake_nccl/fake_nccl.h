// A libnccl, libcudart and libcuda in one shared library, for machines without a GPU: device memory is host memory,
// ranks are threads of one process (with streams of their own), streams run their operations in order once what they
// wait for is done. It does the arithmetic, and it can be told to go wrong. Tests open it with dlopen, as the provider
// does, and find the functions here by dlsym. fake_nccl_218 is the same as NCCL 2.18.1 was: without what came later.
#pragma once

extern "C" {

enum FakeNcclMode {
  kFakeWorks = 0,
  kFakeCallError = 1,   // the k-th call returns ncclInvalidUsage
  kFakeAsyncError = 2,  // the k-th call never finishes and its communicator reports ncclRemoteError
  kFakeHang = 3,        // the k-th call never finishes
  kFakeSetupHang = 4,   // the k-th call stays in ncclInProgress, or does not return if the communicator blocks
  kFakeInitHang = 5,    // creation stays in ncclInProgress
  kFakeInitError = 6,   // creation returns ncclSystemError
  kFakeSlowSetup = 7,   // every call is in progress for a few polls first
  kFakeNothing = 8,     // calls do nothing at all, at once: for measurements
  kFakeAlone = 9,       // the other ranks are other processes: creation succeeds without them, no call ever finishes
  kFakeHeld = 10,       // as kFakeSetupHang for all calls, until kFakeWorks: then they go on
};

// Applies to calls made from now on, counted from 1 over all communicators of `rank`; -1: of every rank. abort_hangs:
// ncclCommAbort does not return for 30 s.
void FakeNcclConfigure(FakeNcclMode mode, int k, int rank, bool abort_hangs);
// How many communicators exist that were neither destroyed nor aborted.
int FakeNcclLiveCommunicators();
// How many communicators were made since the last configuration: 0 from ids, 1 by split, 2 by shrink, 3 by a split and
// blocking.
int FakeNcclMade(int how);
// The most calls of a communicator that were unfinished at a time, since the last configuration.
int FakeNcclMostPending();
// How much memory is registered; the oldest fake has no such function.
int FakeNcclLiveRegistrations();
// Pre-multiplied sums that were not destroyed.
int FakeNcclLiveOps();
// Device and pinned memory that was not freed. While a stream is captured, only threads that have relaxed their mode
// get any.
int FakeCudaLiveAllocations();
// The k-th allocation from now on fails, counted from 1.
void FakeCudaRefuseAllocation(int k);
// Whether the driver takes modules of kernels.
void FakeCudaTakeKernels(bool takes);
}
