// Every kind of call through the provider, against a serial reference, over the fake NCCL.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm {
namespace {

class NcclProviderTest : public testing::Test {
 protected:
  void SetUp() override { TheFake().configure(kFakeWorks, 0, -1, false); }
  void TearDown() override {
    TheFake().configure(kFakeWorks, 0, -1, false);
    EXPECT_EQ(TheFake().live_communicators(), 0);
  }
};

using Values = std::vector<int32_t>;

// What rank r's input holds.
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

void ExpectNoProblem(const std::vector<std::string>& problems) {
  for (size_t rank = 0; rank < problems.size(); ++rank) EXPECT_EQ(problems[rank], "") << "rank " << rank;
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

TEST_F(NcclProviderTest, TypesThatNcclLacksAreMovedButNotReduced) {
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
    request.kind = CollectiveKind::kAllReduce;
    return absl::IsUnimplemented(self.Run(request)) ? "" : "all_reduce of int16 was not refused";
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

TEST_F(NcclProviderTest, SplitSharesTheParentsCommunicator) {
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

TEST_F(NcclProviderTest, AlgorithmsCannotBeForced) {
  ExpectNoProblem(RunNcclRanks(1, [](NcclRank& self) -> std::string {
    CollectiveRequest request;
    request.kind = CollectiveKind::kBarrier;
    return absl::IsInvalidArgument(self.provider().Choose(request, "ring").status()) ? "" : "ring was not refused";
  }));
}

}  // namespace
}  // namespace cohort::comm
