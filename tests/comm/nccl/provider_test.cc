// Every kind of call through the provider, against a serial reference, over the fake NCCL.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm {
namespace {

class NcclProviderTest : public ::testing::Test {
 protected:
  void SetUp() override { TheFake().configure(kFakeWorks, 0, -1, false); }
  void TearDown() override {
    TheFake().configure(kFakeWorks, 0, -1, false);
    EXPECT_EQ(TheFake().live_communicators(), 0);
    EXPECT_EQ(TheFake().live_allocations(), 0);
  }
};

using Values = std::vector<int32_t>;

// Returns the input of rank r.
Values Input(int rank, size_t count) {
  Values values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>((rank + 1) * 1000 + static_cast<int>(i));
  return values;
}

CollectiveRequest Request(CollectiveKind kind, const Values& in, Values& out, size_t count, int root = -1) {
  CollectiveRequest request;
  request.kind = kind;
  request.in = in.data();
  request.out = out.data();
  request.count = static_cast<int64_t>(count);
  request.dtype = DataType::kInt32;
  request.root = root;
  return request;
}

std::string Expect(const Values& got, const Values& expected, const std::string& what) {
  return got == expected ? "" : what + " gave wrong values";
}

std::string CheckReductions(NcclRank& self, size_t n) {
  const int size = self.size();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
    const auto total = [&](size_t i) -> int32_t {
      int64_t sum = 0;
      for (int r = 0; r < size; ++r) sum += Input(r, i + 1)[i];
      if (op == ReduceOp::kMin) return Input(0, i + 1)[i];
      if (op == ReduceOp::kMax) return Input(size - 1, i + 1)[i];
      return static_cast<int32_t>(op == ReduceOp::kAvg ? sum / size : sum);
    };
    Values in = Input(self.rank(), n), out(n), expected(n);
    for (size_t i = 0; i < n; ++i) expected[i] = total(i);
    CollectiveRequest request = Request(CollectiveKind::kAllReduce, in, out, n);
    request.op = op;
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    if (out != expected) return "all_reduce " + std::string(Name(op)) + " gave wrong values";
    out.assign(n, 0);
    request = Request(CollectiveKind::kReduce, in, out, n, size - 1);
    request.op = op;
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    if (out != (self.rank() == size - 1 ? expected : Values(n))) return "reduce gave wrong values";
    Values all = Input(self.rank(), n * static_cast<size_t>(size)), part(n);
    request = Request(CollectiveKind::kReduceScatter, all, part, n);
    request.op = op;
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    for (size_t i = 0; i < n; ++i) {
      if (part[i] != total(static_cast<size_t>(self.rank()) * n + i)) return "reduce_scatter gave wrong values";
    }
  }
  return "";
}

std::string CheckMoves(NcclRank& self, size_t n) {
  const int size = self.size(), rank = self.rank(), root = size / 2;
  const auto blocks = static_cast<size_t>(size);
  Values in = Input(rank, n), all(n * blocks), gathered;
  for (int r = 0; r < size; ++r) {
    const Values block = Input(r, n);
    gathered.insert(gathered.end(), block.begin(), block.end());
  }
  if (const absl::Status status = self.Run(Request(CollectiveKind::kAllGather, in, all, n)); !status.ok()) {
    return status.ToString();
  }
  if (all != gathered) return "all_gather gave wrong values";
  all.assign(n * blocks, 0);
  if (const absl::Status status = self.Run(Request(CollectiveKind::kGather, in, all, n, root)); !status.ok()) {
    return status.ToString();
  }
  if (all != (rank == root ? gathered : Values(n * blocks))) return "gather gave wrong values";
  Values out(n);
  if (const absl::Status status = self.Run(Request(CollectiveKind::kScatter, gathered, out, n, root)); !status.ok()) {
    return status.ToString();
  }
  if (out != in) return "scatter gave wrong values";
  Values buffer = Input(rank, n);
  if (const absl::Status status = self.Run(Request(CollectiveKind::kBroadcast, buffer, buffer, n, root));
      !status.ok()) {
    return status.ToString();
  }
  if (buffer != Input(root, n)) return "broadcast gave wrong values";
  Values mine = Input(rank, n * blocks), turned(n * blocks);
  if (const absl::Status status = self.Run(Request(CollectiveKind::kAllToAll, mine, turned, n)); !status.ok()) {
    return status.ToString();
  }
  for (size_t i = 0; i < n * blocks; ++i) {
    const size_t from = n == 0 ? 0 : i / n;
    if (turned[i] != Input(static_cast<int>(from), n * blocks)[static_cast<size_t>(rank) * n + i % n]) {
      return "all_to_all gave wrong values";
    }
  }
  CollectiveRequest barrier;
  barrier.kind = CollectiveKind::kBarrier;
  return self.Run(barrier).ok() ? "" : "barrier failed";
}

TEST_F(NcclProviderTest, EveryKindGivesTheReferencesResult) {
  for (const int size : {1, 2, 3, 5}) {
    ExpectNoProblem(RunNcclRanks(size, [](NcclRank& self) -> std::string {
      for (const size_t n : {size_t{1}, size_t{7}, size_t{1000}}) {
        if (std::string problem = CheckReductions(self, n); !problem.empty()) return problem;
        if (std::string problem = CheckMoves(self, n); !problem.empty()) return problem;
      }
      return "";
    }));
  }
}

TEST_F(NcclProviderTest, SlowSetupIsWaitedFor) {
  TheFake().configure(kFakeSlowSetup, 0, -1, false);
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string { return CheckMoves(self, 5); }));
}

TEST_F(NcclProviderTest, PointToPointMovesBytes) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Values data = Input(self.rank(), 10);
    CollectiveRequest request =
        Request(self.rank() == 0 ? CollectiveKind::kSend : CollectiveKind::kRecv, data, data, 10);
    request.peer = 1 - self.rank();
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    return Expect(data, Input(0, 10), "recv");
  }));
}

TEST_F(NcclProviderTest, TypesThatNcclLacksAreMovedAsBytes) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    std::vector<int16_t> in(6, static_cast<int16_t>(self.rank() + 1)), out(12);
    CollectiveRequest request;
    request.kind = CollectiveKind::kAllGather;
    request.in = in.data();
    request.out = out.data();
    request.count = 6;
    request.dtype = DataType::kInt16;
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    for (size_t i = 0; i < 12; ++i) {
      if (out[i] != (i < 6 ? 1 : 2)) return "all_gather of int16 gave wrong values";
    }
    return "";
  }));
}

TEST_F(NcclProviderTest, WorkIsPendingUntilAllMembersHaveCalled) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    CollectiveRequest barrier;
    barrier.kind = CollectiveKind::kBarrier;
    if (!self.Run(barrier).ok()) return "the first barrier failed";
    if (self.rank() == 1) {
      if (!self.runtime().Get("looked", runtime::Deadline::After(std::chrono::seconds(30))).ok()) return "no look";
      return self.Run(barrier).ok() ? "" : "barrier failed";
    }
    runtime::Work work = self.Launch(barrier);
    const bool early = work.Done() || !absl::IsDeadlineExceeded(work.Wait(std::chrono::milliseconds(20)));
    if (!self.runtime().Put("looked", "1", runtime::Deadline::After(std::chrono::seconds(30))).ok()) return "Put";
    if (early) return "a barrier was done before the other rank came";
    if (!work.WaitOnStream(nullptr).ok()) return "WaitOnStream failed";
    return work.Wait(std::chrono::seconds(30)).ok() ? "" : "barrier failed";
  }));
}

TEST_F(NcclProviderTest, EveryDeviceOfARankHasItsOwnDeviceGroup) {
  ExpectNoProblem(RunNcclRanks(3, [](NcclRank& self) -> std::string {
    // CUDA's numbers may differ: what counts is the order of first use.
    for (const int device : {self.rank(), self.rank() + 3, self.rank()}) {
      Values in = Input(self.rank(), 4), out(12);
      CollectiveRequest request = Request(CollectiveKind::kAllGather, in, out, 4);
      request.device = device;
      if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
      for (int rank = 0; rank < 3; ++rank) {
        if (!std::equal(out.begin() + 4 * rank, out.begin() + 4 * rank + 4, Input(rank, 4).begin())) return "wrong";
      }
    }
    return TheFake().made(0) == 6 ? "" : "not two communicators a rank";
  }));
}

TEST_F(NcclProviderTest, AllToAllWorksInPlace) {
  ExpectNoProblem(RunNcclRanks(3, [](NcclRank& self) -> std::string {
    Values data = Input(self.rank(), 6);
    CollectiveRequest request = Request(CollectiveKind::kAllToAll, data, data, 2);
    request.in_place = true;
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    for (size_t i = 0; i < 6; ++i) {
      if (data[i] != Input(static_cast<int>(i) / 2, 6)[static_cast<size_t>(self.rank()) * 2 + i % 2]) return "wrong";
    }
    return "";
  }));
}

TEST_F(NcclProviderTest, CallsOfABatchDoNotWaitForEachOther) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    // Both send first: on one stream, and not as a batch, neither receive would ever begin.
    Values in = Input(self.rank(), 5), out(5), sum(5);
    CollectiveRequest send = Request(CollectiveKind::kSend, in, out, 5);
    CollectiveRequest receive = Request(CollectiveKind::kRecv, in, out, 5);
    send.peer = receive.peer = 1 - self.rank();
    std::vector<runtime::Work> works;
    {
      const runtime::EngineLock lock(self.runtime().engine());
      self.provider().BatchBegin();
      works.push_back(self.Launch(send));
      works.push_back(self.Launch(receive));
      works.push_back(self.Launch(Request(CollectiveKind::kAllReduce, in, sum, 5)));
      self.provider().BatchEnd();
    }
    for (runtime::Work& work : works) {
      if (const absl::Status status = work.Wait(std::chrono::seconds(10)); !status.ok()) return status.ToString();
    }
    if (sum[4] != Input(0, 5)[4] + Input(1, 5)[4]) return "all_reduce gave wrong values";
    return Expect(out, Input(1 - self.rank(), 5), "recv");
  }));
}

// Rank r's block has r + 1 elements, with a gap of two behind each; all-to-all: r + s + 1.
std::string CheckUnequal(NcclRank& self) {
  const int size = self.size(), rank = self.rank(), root = size - 1;
  BlockTable one{{rank + 1}, {0}, {rank + 1}, {0}}, many;
  int64_t end = 0;
  for (int r = 0; r < size; ++r) {
    many.in_counts.push_back(r + 1);
    many.in_places.push_back(end);
    end += r + 3;
  }
  many.out_counts = many.in_counts;
  many.out_places = many.in_places;
  const auto total = static_cast<size_t>(end);
  const auto run = [&](CollectiveKind kind, const Values& in, Values& out, const BlockTable& table) {
    CollectiveRequest request = Request(kind, in, out, 1, root);
    request.blocks = &table;
    return self.Run(request);
  };
  Values mine = Input(rank, static_cast<size_t>(rank) + 1), all(total), part(static_cast<size_t>(rank) + 1);
  const auto blocks_ok = [&](const Values& values) {
    for (int r = 0; r < size; ++r) {
      const Values block = Input(r, static_cast<size_t>(r) + 1);
      if (!std::equal(block.begin(), block.end(), values.begin() + many.out_places[static_cast<size_t>(r)]))
        return false;
    }
    return true;
  };
  BlockTable gather{one.in_counts, one.in_places, many.out_counts, many.out_places};
  if (!run(CollectiveKind::kAllGatherV, mine, all, gather).ok() || !blocks_ok(all)) return "all_gather_v";
  all.assign(total, 0);
  const BlockTable& at = rank == root ? gather : one;
  if (!run(CollectiveKind::kGatherV, mine, all, at).ok() || (rank == root && !blocks_ok(all))) return "gather_v";
  BlockTable scatter{many.in_counts, many.in_places, one.out_counts, one.out_places};
  Values whole(total, 7);
  for (int r = 0; r < size; ++r) {
    const Values block = Input(r, static_cast<size_t>(r) + 1);
    std::copy(block.begin(), block.end(), whole.begin() + many.in_places[static_cast<size_t>(r)]);
  }
  if (!run(CollectiveKind::kScatterV, whole, part, rank == root ? scatter : one).ok() || part != mine)
    return "scatter_v";
  if (!run(CollectiveKind::kReduceScatterV, whole, part, scatter).ok()) return "reduce_scatter_v";
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] != size * mine[i]) return "reduce_scatter_v gave wrong values";
  }
  BlockTable exchange;
  Values sent, received;
  for (int peer = 0; peer < size; ++peer) {
    const int64_t count = rank + peer + 1;
    exchange.in_counts.push_back(count);
    exchange.in_places.push_back(static_cast<int64_t>(sent.size()));
    sent.insert(sent.end(), static_cast<size_t>(count), rank * 100 + peer);
    received.insert(received.end(), static_cast<size_t>(count), peer * 100 + rank);
  }
  exchange.out_counts = exchange.in_counts;
  exchange.out_places = exchange.in_places;
  Values got(sent.size());
  if (!run(CollectiveKind::kAllToAllV, sent, got, exchange).ok() || got != received) return "all_to_all_v";
  CollectiveRequest in_place = Request(CollectiveKind::kAllToAllV, sent, sent, 1);
  in_place.blocks = &exchange;
  in_place.in_place = true;
  return self.Run(in_place).ok() && sent == received ? "" : "all_to_all_v in place";
}

TEST_F(NcclProviderTest, BlocksMayHaveUnequalLengths) {
  for (const int size : {1, 2, 4}) ExpectNoProblem(RunNcclRanks(size, CheckUnequal));
}

TEST_F(NcclProviderTest, CallsAreCapturedIntoGraphs) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    FakeStream stream, other;
    CollectiveRequest barrier;
    barrier.kind = CollectiveKind::kBarrier;
    if (!self.Run(barrier).ok()) return "the first barrier failed";
    Values in = Input(self.rank(), 3), out(3);
    stream.BeginCapture();
    runtime::Work work = self.Launch(Request(CollectiveKind::kAllReduce, in, out, 3), stream.get());
    if (!work.Done() || !work.status().ok()) return "a captured call is not done: " + work.status().ToString();
    if (!work.WaitOnStream(other.get()).ok()) return "WaitOnStream failed";
    cudaGraphExec_t const graph = stream.EndCapture();
    if (out != Values(3)) return "a captured call ran";
    for (int i = 1; i <= 2; ++i) {
      in[0] = i * (self.rank() + 1);
      stream.Replay(graph);
      if (out[0] != 3 * i) return "replay gave wrong values";
      if (!self.Run(barrier).ok()) return "barrier failed";
    }
    return "";
  }));
}

TEST_F(NcclProviderTest, AFirstCallIsNotCaptured) {
  (void)RunNcclRanks(2, [](NcclRank& self) -> std::string {
    FakeStream stream;
    stream.BeginCapture();
    CollectiveRequest barrier;
    barrier.kind = CollectiveKind::kBarrier;
    const absl::Status status = self.Launch(barrier, stream.get()).Wait(std::chrono::seconds(10));
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    return "";
  });
}

TEST_F(NcclProviderTest, AnEndedGroupsCommunicatorIsUsedAgain) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    CollectiveRequest barrier;
    barrier.kind = CollectiveKind::kBarrier;
    if (!self.Run(barrier).ok()) return "the first barrier failed";
    for (const uint64_t id : {100u, 101u, 102u}) {
      NcclRank child(&self.runtime(), {0, 1}, FakeOptions(), id);
      if (const absl::Status status = child.Run(barrier); !status.ok()) return status.ToString();
    }
    // Two alive at a time: the rest was used again.
    return TheFake().made(0) <= 4 ? "" : std::to_string(TheFake().made(0)) + " communicators were made";
  }));
}

TEST_F(NcclProviderTest, MemoryIsRegisteredUntilTheGroupEnds) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Values in = Input(self.rank(), 4), out(4);
    {
      const runtime::EngineLock lock(self.runtime().engine());
      const Buffer buffer(in.data(), 4, DataType::kInt32, MemoryKind::kCuda, 0);
      const auto deadline = runtime::Deadline::After(std::chrono::seconds(10));
      for (int i = 0; i < 2; ++i) {
        if (const absl::Status status = self.provider().Register(buffer, deadline); !status.ok())
          return status.ToString();
        self.provider().OnSplit(-1, 0, 300);  // leaves NCCL at work
      }
    }
    return self.Run(Request(CollectiveKind::kAllReduce, in, out, 4)).ok() ? "" : "all_reduce failed";
  }));
  if (const auto live = TheFake().Find<int (*)()>("FakeNcclLiveRegistrations"); live != nullptr) {
    EXPECT_EQ(live(), 0);
  }
}

TEST_F(NcclProviderTest, SplitSharesTheParentsCommunicator) {
  if (TheFake().Find<void*>("ncclCommRevoke") == nullptr) GTEST_SKIP() << "the fake of the oldest NCCL has no split";
  ExpectNoProblem(RunNcclRanks(4, [](NcclRank& self) -> std::string {
    CollectiveRequest barrier;
    barrier.kind = CollectiveKind::kBarrier;
    if (!self.Run(barrier).ok()) return "the first barrier failed";
    const int color = self.rank() % 2;
    self.provider().OnSplit(color, self.rank(), 200 + static_cast<uint64_t>(color));
    NcclRank child(&self.runtime(), {color, color + 2}, FakeOptions(), 200 + static_cast<uint64_t>(color));
    Values in = Input(self.rank(), 3), out(6);
    if (const absl::Status status = child.Run(Request(CollectiveKind::kAllGather, in, out, 3)); !status.ok()) {
      return status.ToString();
    }
    if (!std::equal(out.begin(), out.begin() + 3, Input(color, 3).begin())) return "wrong values";
    if (!self.Run(barrier).ok()) return "the parent does not work any more";
    return TheFake().made(1) == 4 && TheFake().made(0) == 4 ? "" : "no split was made";
  }));
}

TEST_F(NcclProviderTest, ADeviceThatIsNotThereIsRefusedAlone) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Values in = Input(self.rank(), 4), out(4);
    CollectiveRequest request = Request(CollectiveKind::kAllReduce, in, out, 4);
    if (self.rank() == 0) {
      request.device = 99;
      const absl::Status status = self.Run(request);
      const std::string text(status.message());
      if (!absl::IsInvalidArgument(status)) return status.ToString();
      if (text.find("CUDA device 99") == std::string::npos) return text;
      if (text.find("CUDA_VISIBLE_DEVICES") == std::string::npos) return text;
      const runtime::EngineLock lock(self.runtime().engine());
      const Buffer buffer(in.data(), 4, DataType::kInt32, MemoryKind::kCuda, 99);
      const auto deadline = runtime::Deadline::After(std::chrono::seconds(10));
      if (!absl::IsInvalidArgument(self.provider().Register(buffer, deadline))) return "Register";
    }
    request.device = 0;
    if (const absl::Status status = self.Run(request); !status.ok()) return "afterwards: " + status.ToString();
    return self.failure().ToString() == "OK" ? "" : self.failure().ToString();
  }));
}

TEST_F(NcclProviderTest, AlgorithmsCannotBeForced) {
  ExpectNoProblem(RunNcclRanks(1, [](NcclRank& self) -> std::string {
    CollectiveRequest request;
    request.kind = CollectiveKind::kBarrier;
    return absl::IsInvalidArgument(self.provider().Choose(request, "ring").status()) ? "" : "ring was not refused";
  }));
}

}  // namespace
}  // namespace cohort::comm
