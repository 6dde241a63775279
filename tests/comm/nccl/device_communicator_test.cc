// Communicators over CUDA memory, end to end: one rank over the fake NCCL everywhere, one and two ranks over the real
// one where there is a device.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/cuda/device.h"
#include "tests/comm/nccl/device_memory.h"
#include "tests/comm/nccl/gpu_ranks.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {
namespace {

using testing::ProcessRank;
using testing::RunProcesses;
using Values = std::vector<int32_t>;

Buffer Device(DeviceVector& vector, int64_t count) {
  return Buffer(vector.data(), count, DataType::kInt32, MemoryKind::kCuda, 0);
}

// All-reduce, all-gather, broadcast and barrier on device 0.
std::string CheckCollectives(ProcessRank& self, const std::string& library) {
  const absl::StatusOr<const cuda::CudaApi*> api = cuda::LoadCuda(library);
  if (!api.ok()) return api.status().ToString();
  constexpr int64_t kCount = 1000;
  Values mine(kCount), sums(kCount), all;
  for (int64_t i = 0; i < kCount; ++i) mine[i] = static_cast<int32_t>(i * (self.rank + 1));
  for (int rank = 0; rank < self.size; ++rank) {
    for (int64_t i = 0; i < kCount; ++i) {
      all.push_back(static_cast<int32_t>(i * (rank + 1)));
      sums[i] += all.back();
    }
  }
  DeviceVector in(**api, mine), out(**api, Values(kCount)), gathered(**api, Values(all.size()));
  absl::Status status = self.world->AllReduce(Device(in, kCount), Device(out, kCount), ReduceOp::kSum).Wait();
  if (!status.ok()) return "all_reduce: " + status.ToString();
  if (out.values() != sums) return "all_reduce gave wrong values";
  status = self.world->AllGather(Device(in, kCount), Device(gathered, static_cast<int64_t>(all.size()))).Wait();
  if (!status.ok()) return "all_gather: " + status.ToString();
  if (gathered.values() != all) return "all_gather gave wrong values";
  status = self.world->Broadcast(Device(in, kCount), self.size - 1).Wait();
  if (!status.ok()) return "broadcast: " + status.ToString();
  if (in.values() != Values(all.end() - kCount, all.end())) return "broadcast gave wrong values";
  return "";
}

TEST(NcclCommunicatorTest, CollectivesOfOneRankAreRightOverTheFake) {
  const auto results = RunProcesses({.ranks = 1}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
    setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
    return CheckCollectives(self, COHORT_FAKE_NCCL);
  });
  EXPECT_EQ(results[0].text, "");
  EXPECT_TRUE(results[0].exited);
}

template <typename T>
std::vector<T> Numbers(int rank, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<T>(i % 97 + rank + 1);
  return values;
}

Buffer Raw(void* data, int64_t count, DataType dtype) { return Buffer(data, count, dtype, MemoryKind::kCuda, 0); }

// All kinds with blocks of several chunks, in the fake's memory, which the test may read.
std::string CheckStaged(ProcessRank& self, int64_t count) {
  const int size = self.size;
  Communicator& world = *self.world;
  const auto number = [](int rank, int64_t i) { return static_cast<int16_t>(i % 97 + rank + 1); };
  std::vector<int16_t> in = Numbers<int16_t>(self.rank, count), out(in.size());
  const DataType dtype = DataType::kInt16;
  absl::Status status =
      world.AllReduce(Raw(in.data(), count, dtype), Raw(out.data(), count, dtype), ReduceOp::kSum).Wait();
  if (!status.ok()) return "all_reduce: " + status.ToString();
  for (int64_t i = 0; i < count; ++i) {
    if (out[static_cast<size_t>(i)] != size * (i % 97) + size * (size + 1) / 2) return "all_reduce gave wrong values";
  }
  std::vector<int16_t> all(static_cast<size_t>(size * count));
  status = world.AllGather(Raw(in.data(), count, dtype), Raw(all.data(), size * count, dtype)).Wait();
  if (!status.ok()) return "all_gather: " + status.ToString();
  for (int64_t i = 0; i < size * count; ++i) {
    if (all[static_cast<size_t>(i)] != number(static_cast<int>(i / count), i % count)) return "all_gather";
  }
  status =
      world.ReduceScatter(Raw(all.data(), size * count, dtype), Raw(out.data(), count, dtype), ReduceOp::kMax).Wait();
  if (!status.ok() || out != Numbers<int16_t>(self.rank, count)) return "reduce_scatter: " + status.ToString();
  std::vector<int16_t> turned(all.size());
  status = world.AllToAll(Raw(all.data(), size * count, dtype), Raw(turned.data(), size * count, dtype)).Wait();
  if (!status.ok()) return "all_to_all: " + status.ToString();
  for (int64_t i = 0; i < size * count; ++i) {
    if (turned[static_cast<size_t>(i)] != number(self.rank, i % count)) return "all_to_all gave wrong values";
  }
  out = Numbers<int16_t>(self.rank, count);
  status = world.Broadcast(Raw(out.data(), count, dtype), size - 1).Wait();
  if (!status.ok() || out != Numbers<int16_t>(size - 1, count)) return "broadcast: " + status.ToString();
  const CallOptions options;
  status = self.rank == 0   ? world.Send(Raw(in.data(), count, dtype), 1, options).Wait()
           : self.rank == 1 ? world.Recv(Raw(out.data(), count, dtype), 0, options).Wait()
                            : absl::OkStatus();
  if (!status.ok() || (self.rank == 1 && out != Numbers<int16_t>(0, count))) return "send: " + status.ToString();
  // Host memory goes its own way meanwhile.
  int32_t one = 1;
  status = world.AllReduce({&one, 1}, {&one, 1}, ReduceOp::kSum).Wait();
  return status.ok() && one == size ? "" : "all_reduce of host memory: " + status.ToString();
}

// Blocks of unequal length through host memory: rank r's has 3 r elements, and they lie with a gap of two between them.
std::string CheckStagedUnequal(ProcessRank& self, int64_t unit) {
  const int size = self.size, rank = self.rank, root = size - 1;
  Communicator& world = *self.world;
  const DataType dtype = DataType::kInt16;
  const CallOptions options{.algorithm = "staged"};
  std::vector<int64_t> counts, places;
  int64_t end = 0;
  for (int r = 0; r < size; ++r) {
    counts.push_back(unit * r);
    places.push_back(end);
    end += counts.back() + 2;
  }
  const BlockLayout layout{counts, places};
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  const int64_t own = counts[at(rank)];
  std::vector<int16_t> mine = Numbers<int16_t>(rank, own), part(mine.size());
  std::vector<int16_t> expected(at(end), -1), all(at(end), -1);
  for (int r = 0; r < size; ++r) {
    const std::vector<int16_t> block = Numbers<int16_t>(r, counts[at(r)]);
    std::copy(block.begin(), block.end(), expected.begin() + places[at(r)]);
  }
  const Buffer in = Raw(mine.data(), own, dtype), whole = Raw(all.data(), end, dtype);
  const Buffer given = Raw(expected.data(), end, dtype), got = Raw(part.data(), own, dtype);
  absl::Status status = world.AllGatherV(in, whole, layout, options).Wait();
  if (!status.ok() || all != expected) return "all_gather_v: " + status.ToString();
  all.assign(all.size(), -1);
  status = world.GatherV(in, whole, layout, root, options).Wait();
  if (!status.ok() || (rank == root && all != expected)) return "gather_v: " + status.ToString();
  status = world.ScatterV(given, layout, got, root, options).Wait();
  if (!status.ok() || part != mine) return "scatter_v: " + status.ToString();
  status = world.ReduceScatterV(given, layout, got, ReduceOp::kSum, options).Wait();
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] != size * mine[i]) return "reduce_scatter_v gave wrong values";
  }
  if (!status.ok()) return "reduce_scatter_v: " + status.ToString();
  // Between r and s there are unit * (r + s).
  std::vector<int64_t> lengths, starts;
  std::vector<int16_t> sent, received;
  for (int peer = 0; peer < size; ++peer) {
    lengths.push_back(unit * (rank + peer));
    starts.push_back(static_cast<int64_t>(sent.size()) + 1);
    sent.push_back(-7);
    received.push_back(-7);
    sent.insert(sent.end(), at(lengths.back()), static_cast<int16_t>(100 * rank + peer));
    received.insert(received.end(), at(lengths.back()), static_cast<int16_t>(100 * peer + rank));
  }
  const auto bytes = static_cast<int64_t>(sent.size());
  const BlockLayout turned{lengths, starts};
  const Buffer data = Raw(sent.data(), bytes, dtype);
  status = world.AllToAllV(data, turned, data, turned, options).Wait();
  return status.ok() && sent == received ? "" : "all_to_all_v in place: " + status.ToString();
}

TEST(NcclCommunicatorTest, UnequalBlocksGoThroughHostMemory) {
  for (const int ranks : {2, 3}) {
    const auto results = RunProcesses({.ranks = ranks}, [](ProcessRank& self) -> std::string {
      setenv("COHORT_NCCL_LIBRARY", self.rank == 1 ? "/nowhere/libnccl.so.2" : COHORT_FAKE_NCCL, 1);
      setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
      for (const int64_t unit : {int64_t{0}, int64_t{3}, int64_t{1'500'000}, int64_t{10}}) {
        if (std::string problem = CheckStagedUnequal(self, unit); !problem.empty()) return problem;
      }
      return "";
    });
    for (const auto& result : results) EXPECT_EQ(result.text, "") << ranks << " ranks";
  }
}

TEST(NcclCommunicatorTest, AUsersFunctionIsNotCalledOnCudaMemory) {
  const auto results = RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
    setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
    UserReduceOp op;
    op.function = [](void*, const void*, const void*, int64_t, DataType, void*) {};
    op.name = "nothing";
    int32_t value = 3;
    const Buffer buffer(&value, 1, DataType::kInt32, MemoryKind::kCuda, 0);
    CallOptions options;
    options.user_op = &op;
    const absl::Status refused = self.world->AllReduce(buffer, buffer, ReduceOp::kUser, options).Wait();
    if (!absl::IsInvalidArgument(refused)) return "not refused: " + refused.ToString();
    if (std::string(refused.message()).find("host memory") == std::string::npos) return refused.ToString();
    const absl::Status status = self.world->AllReduce({&value, 1}, {&value, 1}, ReduceOp::kSum).Wait();
    return status.ok() && value == 6 ? "" : status.ToString();
  });
  for (const auto& result : results) EXPECT_EQ(result.text, "");
}

// A stream that stands still, and a call through host memory behind it whose time is up: copies wait on the device for
// as long as that lasts.
TEST(NcclCommunicatorTest, AGroupEndsWhereItsCopiesHang) {
  const auto results = RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
    setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
    void* fake = dlopen(COHORT_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    reinterpret_cast<decltype(&FakeNcclConfigure)>(dlsym(fake, "FakeNcclConfigure"))(kFakeAlone, 0, -1, false);
    const absl::StatusOr<const cuda::CudaApi*> api = cuda::LoadCuda(COHORT_FAKE_NCCL);
    auto blocking = self.world->Duplicate(), staging = self.world->Duplicate();
    cudaStream_t stream = nullptr;
    if (!api.ok() || !blocking.ok() || !staging.ok()) return "no groups";
    if ((*api)->cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return "no stream";
    float value = 1;
    const Buffer buffer = Raw(&value, 1, DataType::kFloat32);
    CallOptions options;
    options.stream = stream;
    const Work blocks = (*blocking)->AllReduce(buffer, buffer, ReduceOp::kSum, options);
    if (blocks.Done()) return "the stream does not stand still: " + blocks.status().ToString();
    options.timeout = std::chrono::milliseconds(200);
    options.algorithm = "staged";
    const absl::Status status = (*staging)->AllReduce(buffer, buffer, ReduceOp::kSum, options).Wait();
    if (!absl::IsDeadlineExceeded(status)) return "the staged call: " + status.ToString();
    staging->reset();
    const bool still = !blocks.Done();
    blocking->reset();
    return still ? "" : "the stream went on";
  });
  for (const auto& result : results) EXPECT_EQ(result.text, "");
}

// On one host the comparison of the calls says so, on two the provider of host memory itself, half a second later.
TEST(NcclCommunicatorTest, TheDeadlineOfAStagedCallNamesTheMissingRank) {
  for (const int nodes : {1, 2}) {
    if (nodes > 1 && !testing::WhyHostsCannotTalk().empty()) continue;
    SCOPED_TRACE(nodes);
    const auto results = RunProcesses({.ranks = 2, .nodes = nodes}, [nodes](ProcessRank& self) -> std::string {
      setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
      setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
      std::vector<float> values(100, 1);
      const Buffer buffer = Raw(values.data(), 100, DataType::kFloat32);
      CallOptions options;
      options.algorithm = "staged";
      if (const absl::Status status = self.world->AllReduce(buffer, buffer, ReduceOp::kSum, options).Wait();
          !status.ok()) {
        return "the first call: " + status.ToString();
      }
      options.timeout = std::chrono::milliseconds(300);
      absl::Status status;
      if (self.rank == 0) status = self.world->AllReduce(buffer, buffer, ReduceOp::kSum, options).Wait();
      if (!self.meet("expired", 2)) return "the call did not end";
      const bool hears = self.rank == 0 || nodes == 1;  // these hosts have no agents that pass it on
      if (self.rank == 1 && hears) status = self.world->Barrier().Wait(std::chrono::seconds(60));
      self.meet("end", 2);
      if (!hears) return "";
      if (!absl::IsDeadlineExceeded(status)) return "not kDeadlineExceeded: " + status.ToString();
      const char* const words =
          nodes == 1 ? "rank 1 has not made the call that rank 0 waits in" : "rank 0 waits for rank 1";
      return std::string(status.message()).find(words) != std::string::npos ? "" : status.ToString();
    });
    for (const auto& result : results) EXPECT_EQ(result.text, "");
  }
}

// An error on one rank alone does not end the group.
TEST(NcclCommunicatorTest, ADeviceThatIsNotThereRefusesTheCallOnly) {
  const auto results = RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
    setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
    int32_t value = 3;
    if (self.rank == 1) {
      const Buffer nowhere(&value, 1, DataType::kInt32, MemoryKind::kCuda, 99);
      const absl::Status refused = self.world->AllReduce(nowhere, nowhere, ReduceOp::kSum).Wait();
      if (!absl::IsInvalidArgument(refused)) return "not refused: " + refused.ToString();
    }
    const absl::Status status = self.world->AllReduce({&value, 1}, {&value, 1}, ReduceOp::kSum).Wait();
    return status.ok() && value == 6 ? "" : status.ToString();
  });
  for (const auto& result : results) EXPECT_EQ(result.text, "");
}

TEST(NcclCommunicatorTest, CallsGoThroughHostMemoryWithoutNccl) {
  for (const int ranks : {2, 3}) {
    const auto results = RunProcesses({.ranks = ranks}, [](ProcessRank& self) -> std::string {
      if (self.rank == 1) setenv("COHORT_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
      if (self.rank != 1) setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
      setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
      for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{3'000'001}}) {
        if (std::string problem = CheckStaged(self, count); !problem.empty()) return problem;
      }
      // int16 needs host memory anyway; float32 because of rank 1.
      float value = 1;
      const Buffer buffer = Raw(&value, 1, DataType::kFloat32);
      if (!self.world->AllReduce(buffer, buffer, ReduceOp::kSum).Wait().ok()) return "all_reduce of float32";
      if (value != static_cast<float>(self.size)) return "all_reduce of float32 gave a wrong value";
      const std::string text =
          self.world->Explain(CollectiveKind::kAllReduce, 1, DataType::kFloat32, MemoryKind::kCuda);
      return text.find("rank 1: NCCL could not be loaded") != std::string::npos ? "" : text;
    });
    for (const auto& result : results) EXPECT_EQ(result.text, "") << ranks << " ranks";
  }
}

TEST(NcclCommunicatorTest, DifferentVersionsAreRefusedOnAllRanks) {
  const auto results = RunProcesses({.ranks = 3}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_NCCL_LIBRARY", self.rank == 2 ? COHORT_FAKE_NCCL_218 : COHORT_FAKE_NCCL, 1);
    setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
    float value = 1;
    const Buffer buffer = Raw(&value, 1, DataType::kFloat32);
    const absl::Status status = self.world->AllReduce(buffer, buffer, ReduceOp::kSum).Wait();
    if (!absl::IsFailedPrecondition(status)) return status.ToString();
    return std::string(status.message()).find("rank 2: NCCL 2.18.1; ranks 0,1: NCCL 2.28.9") != std::string::npos
               ? ""
               : status.ToString();
  });
  for (const auto& result : results) EXPECT_EQ(result.text, "");
}

// The second net: NCCL says nothing about calls that do not match, and never ends them.
TEST(NcclCommunicatorTest, MismatchedCallsAreReportedOnAllRanks) {
  const auto results = RunProcesses({.ranks = 3}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
    setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
    void* fake = dlopen(COHORT_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    const auto configure = reinterpret_cast<decltype(&FakeNcclConfigure)>(dlsym(fake, "FakeNcclConfigure"));
    configure(kFakeAlone, 0, -1, false);
    std::vector<float> values(200, 1);
    const Buffer buffer = Raw(values.data(), self.rank == 2 ? 200 : 100, DataType::kFloat32);
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = self.world->AllReduce(buffer, buffer, ReduceOp::kSum).Wait(std::chrono::seconds(60));
    const auto took = std::chrono::steady_clock::now() - start;
    if (!absl::IsFailedPrecondition(status)) return status.ToString();
    const std::string text(status.message());
    for (const char* word : {"rank 2", "100", "200", "communicator_test.cc"}) {
      if (text.find(word) == std::string::npos) return text;
    }
    return took < std::chrono::seconds(20) ? "" : "told too late (promised: 2 s)";
  });
  for (const auto& result : results) EXPECT_EQ(result.text, "");
}

TEST(NcclCommunicatorTest, MissingLibraryRefusesTheCallOnly) {
  const auto results = RunProcesses({.ranks = 1}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_CUDA_LIBRARY", "/nowhere/libcudart.so", 1);
    int32_t value = 3;
    const Buffer buffer(&value, 1, DataType::kInt32, MemoryKind::kCuda, 0);
    const absl::Status refused = self.world->AllReduce(buffer, buffer, ReduceOp::kSum).Wait();
    if (!absl::IsUnimplemented(refused)) return "not refused: " + refused.ToString();
    return self.world->AllReduce({&value, 1}, {&value, 1}, ReduceOp::kSum).Wait().ToString();
  });
  EXPECT_EQ(results[0].text, "OK");
}

// A call that is captured and replayed. `library` as in LoadCuda.
std::string CheckGraph(ProcessRank& self, const std::string& library) {
  const absl::StatusOr<const cuda::CudaApi*> api = cuda::LoadCuda(library);
  if (!api.ok()) return api.status().ToString();
  void* handle = nullptr;
  for (const char* name : {library.c_str(), "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
    if (handle == nullptr && *name != '\0') handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  }
  if (handle == nullptr) return "the CUDA runtime is not loaded";
  const auto begin = reinterpret_cast<decltype(&cudaStreamBeginCapture)>(dlsym(handle, "cudaStreamBeginCapture"));
  const auto end = reinterpret_cast<decltype(&cudaStreamEndCapture)>(dlsym(handle, "cudaStreamEndCapture"));
  const auto make = reinterpret_cast<cudaError_t (*)(cudaGraphExec_t*, cudaGraph_t, unsigned long long)>(
      dlsym(handle, "cudaGraphInstantiateWithFlags"));
  const auto launch = reinterpret_cast<decltype(&cudaGraphLaunch)>(dlsym(handle, "cudaGraphLaunch"));
  constexpr int64_t kCount = 4096;
  const Values mine(kCount, self.rank + 1);
  DeviceVector in(**api, mine), out(**api, Values(kCount));
  if (!self.world->AllReduce(Device(in, kCount), Device(out, kCount), ReduceOp::kSum).Wait().ok()) return "first call";
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  if ((*api)->cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return "no stream";
  if (begin(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return "no capture";
  CallOptions options;
  options.stream = stream;
  const Work work = self.world->AllReduce(Device(in, kCount), Device(in, kCount), ReduceOp::kSum, options);
  if (!work.Done() || !work.status().ok()) return "capture: " + work.status().ToString();
  if (end(stream, &graph) != cudaSuccess || make(&executable, graph, 0) != cudaSuccess) return "no graph";
  for (int i = 0; i < 2; ++i) {
    if (launch(executable, stream) != cudaSuccess) return "no launch";
  }
  if ((*api)->cudaStreamSynchronize(stream) != cudaSuccess) return "replay failed";
  const int32_t sum = self.size * (self.size + 1) / 2 * self.size;  // summed twice
  return in.values() == Values(kCount, sum) ? "" : "replays gave " + std::to_string(in.values()[0]);
}

// A call that the other rank never makes ends with the abort.
std::string CheckAbort(ProcessRank& self) {
  const absl::StatusOr<const cuda::CudaApi*> api = cuda::LoadCuda("");
  if (!api.ok()) return api.status().ToString();
  DeviceVector data(**api, Values(1000, 1));
  if (!self.world->AllReduce(Device(data, 1000), Device(data, 1000), ReduceOp::kSum).Wait().ok()) return "first call";
  if (!self.meet("ready", self.size)) return "not met";
  if (self.rank == 0) {
    Work work = self.world->AllReduce(Device(data, 1000), Device(data, 1000), ReduceOp::kSum);
    self.world->Abort("a test");
    const absl::Status status = work.Wait(std::chrono::seconds(30));
    if (!absl::IsAborted(status)) return "aborted: " + status.ToString();
  }
  return self.meet("done", self.size) ? "" : "not met";
}

TEST(NcclCommunicatorTest, OneRankCapturesAGraphOverTheFake) {
  const auto results = RunProcesses({.ranks = 1}, [](ProcessRank& self) -> std::string {
    setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
    setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
    return CheckGraph(self, COHORT_FAKE_NCCL);
  });
  EXPECT_EQ(results[0].text, "");
}

TEST_F(NcclGpuTest, CollectivesOfOneAndTwoRanksOnOneDeviceAreRight) {
  for (const int ranks : {1, 2}) Run(ranks, [](ProcessRank& self) { return CheckCollectives(self, ""); });
}

TEST_F(NcclGpuTest, GraphsReplayCalls) {
  for (const int ranks : {1, 2}) Run(ranks, [](ProcessRank& self) { return CheckGraph(self, ""); });
}

TEST_F(NcclGpuTest, AbortEndsACall) { Run(2, CheckAbort); }

// int16: exchanged and folded by our kernels; and the same through host memory.
TEST_F(NcclGpuTest, TypesThatNcclLacksAreReducedByCohort) {
  Run(2, [](ProcessRank& self) -> std::string {
    const absl::StatusOr<const cuda::CudaApi*> api = cuda::LoadCuda("");
    if (!api.ok()) return api.status().ToString();
    constexpr int64_t kCount = 3'000'000;
    // Two int16 in each int32: 1 and 0.
    DeviceVector data(**api, Values(kCount, 1));
    const Buffer buffer(data.data(), 2 * kCount, DataType::kInt16, MemoryKind::kCuda, 0);
    absl::Status status = self.world->AllReduce(buffer, buffer, ReduceOp::kSum).Wait();
    if (!status.ok()) return status.ToString();
    if (data.values() != Values(kCount, 2)) return "all_reduce of int16 gave wrong values";
    const std::string text = self.world->Explain(CollectiveKind::kAllReduce, 1, DataType::kInt16, MemoryKind::kCuda);
    if (text.find("folded by kernels") == std::string::npos) return text;
    status = self.world->AllReduce(buffer, buffer, ReduceOp::kSum, {.algorithm = "staged"}).Wait();
    if (!status.ok()) return status.ToString();
    return data.values() == Values(kCount, 4) ? "" : "all_reduce of int16 through host memory gave wrong values";
  });
}

}  // namespace
}  // namespace cohort::comm
