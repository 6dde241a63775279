// A failure on a real device ends, with the words that host memory has: NCCL itself would wait for ever. And the
// time that a call costs its caller above NCCL's own.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/nccl/library/nccl_api.h"
#include "cohort/runtime/runtime.h"
#include "tests/comm/nccl/gpu_ranks.h"
#include "tests/support/sanitized.h"

namespace cohort::comm {
namespace {

using std::chrono::seconds;
using testing::ProcessRank;
using Clock = std::chrono::steady_clock;

class NcclFailures : public NcclGpuTest {};

bool Says(const absl::Status& status, const std::string& words) {
  return std::string(status.message()).find(words) != std::string::npos;
}

std::vector<char> Ones(int64_t count) {
  std::vector<char> bytes(static_cast<size_t>(count) * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(bytes.data()), count, 1.0F);
  return bytes;
}

class NcclChecks : public NcclGpuTest {
 protected:
  void SetUp() override {
    setenv("COHORT_CHECK", "nan", 1);
    NcclGpuTest::SetUp();
  }
  void TearDown() override { unsetenv("COHORT_CHECK"); }
};

// Calls `check` with 200 float32 on the device, after a first call.
void WithData(int ranks, void (*run)(int, const std::function<std::string(ProcessRank&)>&),
              const std::function<std::string(ProcessRank&, const cuda::CudaApi&, const Buffer&)>& check) {
  run(ranks, [&](ProcessRank& self) -> std::string {
    const absl::StatusOr<const cuda::CudaApi*> api = cuda::LoadCuda("");
    if (!api.ok()) return api.status().ToString();
    const DeviceBytes data(**api, Ones(200));
    const Buffer buffer = data.buffer(DataType::kFloat32);
    const absl::Status first = self.world->AllReduce(buffer, buffer, ReduceOp::kMax).Wait();
    return first.ok() ? check(self, **api, buffer) : "the first call: " + first.ToString();
  });
}

TEST_F(NcclFailures, MismatchedCallsAreReportedOnAllRanks) {
  WithData(2, Run, [](ProcessRank& self, const cuda::CudaApi&, const Buffer& buffer) -> std::string {
    const Buffer part(buffer.data, self.rank == 0 ? 100 : 200, buffer.dtype, buffer.memory, buffer.device);
    const Clock::time_point start = Clock::now();
    const absl::Status status = self.world->AllReduce(part, part, ReduceOp::kSum).Wait(seconds(50));
    if (!absl::IsFailedPrecondition(status)) return status.ToString();
    for (const char* word : {"100", "200", "device_failures_test.cc"}) {
      if (!Says(status, word)) return status.ToString();
    }
    return Clock::now() - start < seconds(20) ? "" : "told too late (promised: 2 s)";
  });
}

TEST_F(NcclFailures, ACallThatOneRankMakesEndsAtItsDeadline) {
  WithData(2, Run, [](ProcessRank& self, const cuda::CudaApi&, const Buffer& buffer) -> std::string {
    if (self.rank == 1) return self.meet("over", 2) ? "" : "rank 0 did not end";
    CallOptions options;
    options.timeout = std::chrono::milliseconds(500);
    const absl::Status status = self.world->AllReduce(buffer, buffer, ReduceOp::kSum, options).Wait(seconds(50));
    self.meet("over", 2);
    return absl::IsDeadlineExceeded(status) && Says(status, "rank 1") ? "" : status.ToString();
  });
}

TEST_F(NcclFailures, TwoCommunicatorsInDifferentOrdersAreReported) {
  WithData(2, Run, [](ProcessRank& self, const cuda::CudaApi& api, const Buffer& buffer) -> std::string {
    auto other = self.world->Duplicate();
    if (!other.ok()) return other.status().ToString();
    if (const absl::Status status = (*other)->AllReduce(buffer, buffer, ReduceOp::kMax).Wait(); !status.ok()) {
      return "the other's first call: " + status.ToString();
    }
    CallOptions one, two;
    for (void** stream : {&one.stream, &two.stream}) {
      if (api.cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking) !=
          cudaSuccess) {
        return "no stream";
      }
    }
    Communicator* const order[] = {self.world, other->get()};
    Work first = order[self.rank]->AllReduce(buffer, buffer, ReduceOp::kMax, one);
    Work second = order[1 - self.rank]->AllReduce(buffer, buffer, ReduceOp::kMax, two);
    const absl::Status status = first.Wait(seconds(25)), after = second.Wait(seconds(25));
    return Says(status, "order") || Says(after, "order") ? "" : status.ToString() + "; " + after.ToString();
  });
}

// Calls of two communicators in the same order, on two streams.
TEST_F(NcclFailures, TwoCommunicatorsTakeTurns) {
  WithData(2, Run, [](ProcessRank& self, const cuda::CudaApi& api, const Buffer& buffer) -> std::string {
    auto other = self.world->Duplicate();
    if (!other.ok()) return other.status().ToString();
    CallOptions one, two;
    for (void** stream : {&one.stream, &two.stream}) {
      if (api.cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking) !=
          cudaSuccess) {
        return "no stream";
      }
    }
    const DeviceBytes more(api, Ones(300'000));
    const Buffer large = more.buffer(DataType::kFloat32);
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      works.push_back(self.world->AllReduce(buffer, buffer, ReduceOp::kAvg, one));
      works.push_back((*other)->AllReduce(large, large, ReduceOp::kAvg, two));
    }
    for (Work& work : works) {
      if (const absl::Status status = work.Wait(seconds(50)); !status.ok()) return status.ToString();
    }
    return more.bytes() == Ones(300'000) ? "" : "another result";
  });
}

// CUDA takes no call at all any more, on any thread, once 1,024 launches wait for a peer that does not come.
TEST_F(NcclFailures, MoreCallsThanADeviceTakesEndAtTheirDeadline) {
  WithData(2, Run, [](ProcessRank& self, const cuda::CudaApi&, const Buffer& buffer) -> std::string {
    if (self.rank == 1) return self.meet("over", 2) ? "" : "rank 0 did not end";
    CallOptions options;
    options.timeout = seconds(1);
    std::vector<Work> works;
    for (int i = 0; i < 1200; ++i) works.push_back(self.world->AllReduce(buffer, buffer, ReduceOp::kMax, options));
    std::string problem;
    for (Work& work : works) {
      const absl::Status status = work.Wait(seconds(25));
      if (!absl::IsDeadlineExceeded(status)) problem = status.ToString();
    }
    self.meet("over", 2);
    return problem;
  });
}

TEST_F(NcclFailures, SurvivorsGoOnAfterARankHasDied) {
  WithData(3, Run, [](ProcessRank& self, const cuda::CudaApi& api, const Buffer& buffer) -> std::string {
    if (self.rank == 1) kill(getpid(), SIGKILL);
    CallOptions options;
    options.timeout = seconds(2);
    const absl::Status failed = self.world->AllReduce(buffer, buffer, ReduceOp::kMax, options).Wait(seconds(25));
    if (failed.ok()) return "a call without the dead rank is over";
    const auto rest = self.world->Shrink(seconds(25));
    if (!rest.ok()) return rest.status().ToString();
    const DeviceBytes fresh(api, Ones(200));
    const Buffer data = fresh.buffer(DataType::kFloat32);
    const absl::Status status = (*rest)->AllReduce(data, data, ReduceOp::kSum, options).Wait(seconds(25));
    if (!status.ok()) return status.ToString();
    float sum = 0;
    std::memcpy(&sum, fresh.bytes().data(), sizeof sum);
    return sum == 2 ? "" : "a sum of " + std::to_string(sum);
  });
}

// The median over rounds of the mean over calls, in nanoseconds, of what comes before `end`.
template <typename Call, typename End>
double Nanoseconds(Call call, End end) {
  constexpr int kRounds = 15, kCalls = 100;
  std::vector<double> means;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    means.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls);
    end();
  }
  std::nth_element(means.begin(), means.begin() + kRounds / 2, means.end());
  return means[kRounds / 2];
}

// NCCL as it is, on a communicator of its own.
struct BareNccl {
  const nccl::NcclApi* api = nullptr;
  ncclComm_t communicator = nullptr;

  std::string Make(ProcessRank& self) {
    const auto loaded = nccl::LoadNccl("");
    if (!loaded.ok()) return loaded.status().ToString();
    api = *loaded;
    ncclUniqueId id = {};
    const auto deadline = runtime::Deadline::After(seconds(30));
    if (self.rank == 0) {
      if (api->ncclGetUniqueId(&id) != ncclSuccess) return "no id";
      if (!self.runtime->Put("bare", std::string(id.internal, sizeof id.internal), deadline).ok()) return "Put";
    } else {
      const auto got = self.runtime->Get("bare", deadline);
      if (!got.ok() || got->size() != sizeof id.internal) return "Get";
      got->copy(id.internal, sizeof id.internal);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const ncclResult_t made = api->ncclCommInitRankConfig(&communicator, self.size, id, self.rank, &config);
    return made == ncclSuccess ? "" : "no communicator";
  }
};

TEST_F(NcclChecks, ANaNInDeviceMemoryIsNamedByRankCallAndElement) {
  WithData(2, Run, [](ProcessRank& self, const cuda::CudaApi& api, const Buffer& buffer) -> std::string {
    const float nan = NAN;
    if (self.rank == 1) {
      (void)api.cudaMemcpyAsync(static_cast<float*>(buffer.data) + 17, &nan, sizeof nan, cudaMemcpyHostToDevice,
                                nullptr);
    }
    absl::Status status = self.world->AllReduce(buffer, buffer, ReduceOp::kSum).Wait(seconds(50));
    for (int i = 0; i < 100 && status.ok(); ++i) status = self.world->Barrier().Wait(seconds(50));
    if (!absl::IsDataLoss(status)) return status.ToString();
    for (const char* word : {"rank 1's input of all_reduce(sum, float32, 200)",
                             "device_failures_test.cc:", " holds NaN at element 17 (1 NaN, 0 inf)"}) {
      if (!Says(status, word)) return status.ToString();
    }
    return "";
  });
}

TEST_F(NcclFailures, CollectivesCostLittleHostTimeAboveTheBareCall) {
  if (cohort::testing::kSanitized) GTEST_SKIP() << "measures microseconds, which a sanitizer makes longer";
  WithData(2, Run, [](ProcessRank& self, const cuda::CudaApi& api, const Buffer& buffer) -> std::string {
    BareNccl bare;
    if (std::string problem = bare.Make(self); !problem.empty()) return problem;
    cudaStream_t stream = nullptr;
    if (api.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return "no stream";
    const auto drain = [&] { (void)api.cudaStreamSynchronize(stream); };
    const auto of_nccl = [&] {
      bare.api->ncclAllReduce(buffer.data, buffer.data, 8, ncclFloat32, ncclMax, bare.communicator, stream);
    };
    CallOptions options;
    options.stream = stream;
    const Buffer eight(buffer.data, 8, buffer.dtype, buffer.memory, buffer.device);
    std::vector<Work> works;
    const auto of_ours = [&] { works.push_back(self.world->AllReduce(eight, eight, ReduceOp::kMax, options)); };
    bool ok = true;
    const auto wait = [&] {
      for (Work& work : works) ok = work.Wait(seconds(30)).ok() && ok;
      works.clear();
    };
    Nanoseconds(of_nccl, drain);  // connections
    const double alone = Nanoseconds(of_nccl, drain);
    Nanoseconds(of_ours, wait);
    const double ours = Nanoseconds(of_ours, wait);
    if (self.rank == 0) {
      std::printf("all_reduce of 32 B: ncclAllReduce %.0f ns, ours %.0f ns: %.0f ns of host time added\n", alone, ours,
                  ours - alone);
      std::fflush(stdout);
    }
    bare.api->ncclCommDestroy(bare.communicator);
    if (!ok) return "a call failed";
    return ours - alone < 10'000 ? "" : "more than ten times the microsecond that is promised";
  });
}

}  // namespace
}  // namespace cohort::comm
