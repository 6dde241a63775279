// Ranks as threads of this process, each with a runtime of its own, all with the provider over the fake NCCL.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/nccl/nccl_provider.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/runtime/runtime.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace cohort::comm {

// A stream of the fake, and what was captured on it.
class FakeStream {
 public:
  FakeStream();
  ~FakeStream();
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;
  cudaStream_t get() const { return stream_; }

  void BeginCapture();
  // The graph, which lives as long as the stream.
  cudaGraphExec_t EndCapture();
  // Launches the graph here, and waits.
  void Replay(cudaGraphExec_t graph);

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<cudaGraph_t> graphs_;
};

// One rank of a test. The fake's device memory is host memory, so that tests use vectors.
class NcclRank {
 public:
  NcclRank(runtime::Runtime* runtime, std::vector<int> members, const NcclOptions& options, uint64_t id = 77);
  ~NcclRank();

  // Before the first call: this group is what is left of group `id` without its group ranks `lost`.
  void SetShrunkFrom(uint64_t id, std::vector<int> lost) {
    group_.shrunk_from = id;
    group_.lost = std::move(lost);
  }
  void SetChecks(runtime::Checks checks) { group_.checks = checks; }
  int rank() const { return group_.rank; }
  int size() const { return group_.size; }
  Provider& provider() { return *provider_; }
  runtime::Runtime& runtime() { return *group_.runtime; }
  // The first failure that the provider reported; OK when none.
  const absl::Status& failure() const { return failure_; }

  // Fills what is left out of `request` (device memory) and launches it as a group would. Null: on a stream of this
  // rank, since those of a process share the default stream.
  runtime::Work Launch(CollectiveRequest request, void* stream = nullptr,
                       std::chrono::nanoseconds timeout = std::chrono::seconds(8));
  // The same, and waits for it.
  absl::Status Run(const CollectiveRequest& request, std::chrono::nanoseconds timeout = std::chrono::seconds(8));

 private:
  // Drives the provider as the group would.
  class Source;

  GroupContext group_;
  const std::unique_ptr<FakeStream> stream_;
  std::unique_ptr<Provider> provider_;
  std::unique_ptr<Source> source_;
  absl::Status failure_;
  uint64_t sequence_ = 0;
};

// The control functions of the fake that the provider uses, too.
struct FakeNccl {
  decltype(&FakeNcclConfigure) configure;
  decltype(&FakeNcclLiveCommunicators) live_communicators;
  decltype(&FakeNcclMade) made;
  decltype(&FakeCudaLiveAllocations) live_allocations;
  void* library;
  // A function that it has, too.
  template <typename Function>
  Function Find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library, name));
  }
};
const FakeNccl& TheFake();
// The fake of COHORT_TEST_FAKE_NCCL in the environment; without it, that of today's NCCL.
NcclOptions FakeOptions();

// The call that every kind of group has.
CollectiveRequest Barrier(int device = 0);

// Runs body(rank) in `size` threads. The fake works unless the body configures it. Returns what bodies returned: "" or
// what was wrong.
std::vector<std::string> RunNcclRanks(int size, const std::function<std::string(NcclRank&)>& body);
// Fails the test for each rank whose text is not empty.
void ExpectNoProblem(const std::vector<std::string>& problems);

}  // namespace cohort::comm
