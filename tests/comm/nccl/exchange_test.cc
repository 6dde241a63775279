// Reductions that NCCL does not compute: exchanged by it and folded by kernels. Their bits are those of a fold in the
// order of ranks by comm/reduce's kernels. And those that it computes with a factor.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cohort/comm/reduce/reduce.h"
#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm {
namespace {

class NcclExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override { TheFake().configure(kFakeWorks, 0, -1, false); }
  void TearDown() override {
    TheFake().configure(kFakeWorks, 0, -1, false);
    EXPECT_EQ(TheFake().live_communicators(), 0);
    EXPECT_EQ(TheFake().live_allocations(), 0);
    if (const auto ops = TheFake().Find<int (*)()>("FakeNcclLiveOps"); ops != nullptr) {
      EXPECT_EQ(ops(), 0);
    }
  }
};

using Bytes = std::vector<std::byte>;

// Returns the input of rank r: the same on all ranks that ask.
Bytes InputBytes(DataType dtype, int rank, size_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) * 1000 + static_cast<uint64_t>(dtype));
  Bytes bytes(count * SizeOf(dtype));
  if (dtype == DataType::kFloat32) {
    for (size_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(static_cast<double>(random() % 2000) / 7 - 140);
      std::memcpy(&bytes[i * 4], &value, 4);
    }
    return bytes;
  }
  // 8-bit floats get no NaN, whose payload is anything.
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(IsFloat(dtype) ? random() & 0xbf : random());
  return bytes;
}

double FactorOf(DataType dtype, int rank) { return IsFloat(dtype) ? 0.3 + rank : 2 + rank; }

// Elements [begin, begin + count) of all inputs, folded.
Bytes Folded(DataType dtype, ReduceOp op, int size, size_t whole, size_t begin, size_t count) {
  const bool scaled = op == ReduceOp::kPreMulSum;
  const DataType wide = scaled ? AccumulatorOf(dtype) : dtype;
  std::vector<Bytes> inputs;
  std::vector<const void*> ins;
  for (int rank = 0; rank < size; ++rank) {
    const Bytes input = InputBytes(dtype, rank, whole);
    inputs.emplace_back(count * SizeOf(wide));
    const std::byte* from = input.data() + begin * SizeOf(dtype);
    if (scaled) {
      Prepare(dtype, inputs.back().data(), from, count, FactorOf(dtype, rank));
    } else {
      std::copy_n(from, inputs.back().size(), inputs.back().begin());
    }
  }
  for (const Bytes& input : inputs) ins.push_back(input.data());
  Bytes sum(count * SizeOf(wide)), result(count * SizeOf(dtype));
  void* const outs[] = {sum.data()};
  const FoldKernel fold = op == ReduceOp::kAvg ? FindAverageFoldKernel(wide) : FindFoldKernel(wide, op);
  fold(outs, 1, ins.data(), ins.size(), count, false);
  if (wide == dtype) return sum;
  Finish(dtype, result.data(), sum.data(), count, 1);
  return result;
}

CollectiveRequest RequestOf(CollectiveKind kind, DataType dtype, ReduceOp op, int rank, size_t count) {
  CollectiveRequest request;
  request.kind = kind;
  request.dtype = dtype;
  request.op = op;
  request.count = static_cast<int64_t>(count);
  request.factor = FactorOf(dtype, rank);
  return request;
}

std::string CheckKinds(NcclRank& self, DataType dtype, ReduceOp op, Determinism determinism, size_t n) {
  const int size = self.size(), rank = self.rank();
  const std::string what = std::string(Name(dtype)) + " " + std::string(Name(op)) + " " + std::to_string(n) + ": ";
  const size_t element = SizeOf(dtype);
  CollectiveRequest request = RequestOf(CollectiveKind::kAllReduce, dtype, op, rank, n);
  request.determinism = determinism;
  Bytes in = InputBytes(dtype, rank, n), out(n * element);
  request.in = in.data();
  request.out = out.data();
  if (const absl::Status status = self.Run(request); !status.ok()) return what + status.ToString();
  if (out != Folded(dtype, op, size, n, 0, n)) return what + "all_reduce gave other bits";
  request.in = request.out = in.data();
  request.in_place = true;
  if (const absl::Status status = self.Run(request); !status.ok()) return what + status.ToString();
  if (in != out) return what + "all_reduce in place gave other bits";
  in = InputBytes(dtype, rank, n);
  request.in = in.data();
  request.out = out.data();
  request.in_place = false;
  request.kind = CollectiveKind::kReduce;
  request.root = size - 1;
  std::fill(out.begin(), out.end(), std::byte{0x11});
  const Bytes untouched = out;
  if (const absl::Status status = self.Run(request); !status.ok()) return what + status.ToString();
  if (out != (rank == size - 1 ? Folded(dtype, op, size, n, 0, n) : untouched)) return what + "reduce";
  const size_t all = n * static_cast<size_t>(size);
  in = InputBytes(dtype, rank, all);
  request.in = in.data();
  request.kind = CollectiveKind::kReduceScatter;
  if (const absl::Status status = self.Run(request); !status.ok()) return what + status.ToString();
  if (out != Folded(dtype, op, size, all, n * static_cast<size_t>(rank), n)) return what + "reduce_scatter";
  // Rank r gets r elements, one after the block before.
  BlockTable table;
  int64_t end = 0;
  for (int r = 0; r < size; ++r) {
    table.in_counts.push_back(r);
    table.in_places.push_back(end);
    end += r + 1;
  }
  table.out_counts = {rank};
  table.out_places = {0};
  const auto whole = static_cast<size_t>(end), part = static_cast<size_t>(rank);
  in = InputBytes(dtype, rank, whole);
  out.assign(std::max(part, size_t{1}) * element, std::byte{});
  request.in = in.data();
  request.out = out.data();
  request.kind = CollectiveKind::kReduceScatterV;
  request.blocks = &table;
  if (const absl::Status status = self.Run(request); !status.ok()) return what + status.ToString();
  out.resize(part * element);
  const auto begin = static_cast<size_t>(table.in_places[part]);
  return out == Folded(dtype, op, size, whole, begin, part) ? "" : what + "reduce_scatter_v";
}

TEST_F(NcclExchangeTest, EveryKindGivesTheBitsOfAFoldInTheOrderOfRanks) {
  struct Case {
    DataType dtype;
    ReduceOp op;
    Determinism determinism = Determinism::kFast;
  };
  const Case cases[] = {{DataType::kInt16, ReduceOp::kSum},
                        {DataType::kUint16, ReduceOp::kAvg},
                        {DataType::kInt16, ReduceOp::kPreMulSum},
                        {DataType::kInt32, ReduceOp::kBand},
                        {DataType::kUint64, ReduceOp::kBxor},
                        {DataType::kInt8, ReduceOp::kBor},
                        {DataType::kFloat32, ReduceOp::kSum, Determinism::kOrderInvariant},
                        {DataType::kFloat32, ReduceOp::kPreMulSum, Determinism::kOrderInvariant},
                        {DataType::kFloat32, ReduceOp::kAvg, Determinism::kOrderInvariant},
                        {DataType::kFloat8E5M2, ReduceOp::kPreMulSum},
                        {DataType::kFloat8E4M3, ReduceOp::kMax, Determinism::kOrderInvariant},
                        {DataType::kFloat8E4M3, ReduceOp::kSum, Determinism::kOrderInvariant}};
  for (const int size : {2, 3, 5}) {
    const std::vector<std::string> problems = RunNcclRanks(size, [&](NcclRank& self) -> std::string {
      for (const Case& each : cases) {
        for (const size_t n : {size_t{0}, size_t{1}, size_t{33}, size_t{1000}}) {
          std::string problem = CheckKinds(self, each.dtype, each.op, each.determinism, n);
          if (!problem.empty()) return problem;
        }
      }
      return "";
    });
    for (const std::string& problem : problems) EXPECT_EQ(problem, "") << size << " ranks";
  }
}

TEST_F(NcclExchangeTest, AGroupOfOneMultipliesByItsFactor) {
  const std::vector<std::string> problems = RunNcclRanks(1, [](NcclRank& self) -> std::string {
    for (const DataType dtype : {DataType::kInt8, DataType::kInt16, DataType::kUint64, DataType::kBFloat16,
                                 DataType::kFloat32, DataType::kFloat8E5M2}) {
      for (const size_t n : {size_t{0}, size_t{1}, size_t{1000}}) {
        std::string problem = CheckKinds(self, dtype, ReduceOp::kPreMulSum, Determinism::kFast, n);
        if (!problem.empty()) return problem;
      }
    }
    return "";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclExchangeTest, AGroupOfOneIsRefusedTheCallAlone) {
  const std::vector<std::string> problems = RunNcclRanks(1, [](NcclRank& self) -> std::string {
    std::vector<float> in(10, 2), out(10);
    CollectiveRequest request = RequestOf(CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kPreMulSum, 0, 10);
    request.in = in.data();
    request.out = out.data();
    request.factor = 3;
    FakeStream stream;
    stream.BeginCapture();
    const absl::Status refused = self.Launch(request, stream.get()).Wait(std::chrono::seconds(20));
    (void)stream.EndCapture();
    if (!absl::IsFailedPrecondition(refused)) return "its first call was captured: " + refused.ToString();
    if (const absl::Status status = self.Run(request); !status.ok()) return "afterwards: " + status.ToString();
    if (out != std::vector<float>(10, 6)) return "gave " + std::to_string(out[0]);
    stream.BeginCapture();
    const runtime::Work work = self.Launch(request, stream.get());
    cudaGraphExec_t const graph = stream.EndCapture();
    if (!work.Done() || !work.status().ok()) return "capture: " + work.status().ToString();
    in.assign(10, 5);
    stream.Replay(graph);
    return out == std::vector<float>(10, 15) ? "" : "the replay gave " + std::to_string(out[0]);
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclExchangeTest, SlowSetupIsWaitedFor) {
  TheFake().configure(kFakeSlowSetup, 0, -1, false);
  const std::vector<std::string> problems = RunNcclRanks(
      3, [](NcclRank& self) { return CheckKinds(self, DataType::kInt16, ReduceOp::kSum, Determinism::kFast, 100); });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

// Counts how often the engine is driven.
// Ends the fake's hang when the engines of both ranks have been driven.
class Release : public runtime::ProgressSource {
 public:
  explicit Release(std::atomic<int>* driven) : driven_(*driven) {}
  bool Poll() override {
    if (!std::exchange(polled_, true) && ++driven_ == 2) TheFake().configure(kFakeWorks, 0, -1, false);
    return false;
  }
  bool Active() const override { return true; }

 private:
  std::atomic<int>& driven_;
  bool polled_ = false;
};

TEST_F(NcclExchangeTest, OtherOperationsGoOnWhileNcclIsAtWork) {
  std::atomic<int> driven{0};
  const std::vector<std::string> problems = RunNcclRanks(2, [&](NcclRank& self) -> std::string {
    Bytes in = InputBytes(DataType::kInt16, self.rank(), 64), out(128);
    CollectiveRequest request =
        RequestOf(CollectiveKind::kAllReduce, DataType::kInt16, ReduceOp::kSum, self.rank(), 64);
    request.in = in.data();
    request.out = out.data();
    if (!self.Run(request).ok()) return "the first call failed";
    const auto put = [&](const char* key) {
      return self.runtime()
                 .Put(key + std::to_string(self.rank()), "", runtime::Deadline::After(std::chrono::seconds(20)))
                 .ok() &&
             self.runtime()
                 .Get(key + std::to_string(1 - self.rank()), runtime::Deadline::After(std::chrono::seconds(20)))
                 .ok();
    };
    if (!put("first")) return "no first call there";
    request.count = 32;  // NCCL may have connections to make for it
    if (self.rank() == 0) TheFake().configure(kFakeHeld, 0, -1, false);
    if (!put("configured")) return "not configured";
    Release release(&driven);
    runtime::Work work;
    {
      const runtime::EngineLock lock(self.runtime().engine());
      self.runtime().engine().Add(&release);
      work = self.Launch(request);  // ends at its timeout where an engine is not driven
      self.runtime().engine().Remove(&release);
    }
    if (const absl::Status status = work.Wait(std::chrono::seconds(20)); !status.ok()) return status.ToString();
    const Bytes expected = Folded(DataType::kInt16, ReduceOp::kSum, 2, 64, 0, 32);
    if (!std::equal(expected.begin(), expected.end(), out.begin())) return "other bits";
    return "";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclExchangeTest, MemoryOfAFailedCallIsKeptUntilNcclHasStopped) {
  const std::vector<std::string> problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Bytes in = InputBytes(DataType::kInt16, self.rank(), 64), out(128);
    CollectiveRequest request =
        RequestOf(CollectiveKind::kAllReduce, DataType::kInt16, ReduceOp::kSum, self.rank(), 64);
    request.in = in.data();
    request.out = out.data();
    if (!self.Run(request).ok()) return "the first call failed";
    const auto soon = [] { return runtime::Deadline::After(std::chrono::seconds(20)); };
    if (self.rank() == 1) {
      if (!self.runtime().Put("first", "", soon()).ok()) return "Put";
      return self.runtime().Get("over", soon()).ok() ? "" : "rank 0 did not end";
    }
    if (!self.runtime().Get("first", soon()).ok()) return "no first call there";
    const int before = TheFake().live_allocations();
    request.count = 32;  // NCCL may have connections to make for it
    TheFake().configure(kFakeSetupHang, 1, 0, false);
    runtime::Work work = self.Launch(request, nullptr, std::chrono::milliseconds(100));
    // The engine has not been driven since the abort, or the revocation, began: the call is not over.
    const bool pending = !work.Done();
    const int during = TheFake().live_allocations();
    const absl::Status status = work.Wait(std::chrono::seconds(20));
    const int after = TheFake().live_allocations();
    if (!self.runtime().Put("over", "", soon()).ok()) return "Put";
    if (!absl::IsDeadlineExceeded(status)) return "ended with " + status.ToString();
    if (pending && during <= before) return "freed while NCCL could still launch";
    return after == before ? "" : "not freed afterwards";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclExchangeTest, ABatchMayHoldBothKinds) {
  const std::vector<std::string> problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Bytes in = InputBytes(DataType::kInt16, self.rank(), 64), folded(128), gathered(256);
    CollectiveRequest reduce = RequestOf(CollectiveKind::kAllReduce, DataType::kInt16, ReduceOp::kSum, self.rank(), 64);
    CollectiveRequest gather = RequestOf(CollectiveKind::kAllGather, DataType::kInt16, ReduceOp::kSum, self.rank(), 64);
    reduce.in = gather.in = in.data();
    reduce.out = folded.data();
    gather.out = gathered.data();
    if (!self.Run(gather).ok()) return "all_gather";
    gathered.assign(256, std::byte{});
    std::vector<runtime::Work> works;
    {
      const runtime::EngineLock lock(self.runtime().engine());
      self.provider().BatchBegin();
      works.push_back(self.Launch(reduce));
      works.push_back(self.Launch(gather));
      self.provider().BatchEnd();
    }
    for (runtime::Work& work : works) {
      if (const absl::Status status = work.Wait(std::chrono::seconds(10)); !status.ok()) return status.ToString();
    }
    if (folded != Folded(DataType::kInt16, ReduceOp::kSum, 2, 64, 0, 64)) return "all_reduce gave other bits";
    const Bytes last = InputBytes(DataType::kInt16, 1, 64);
    return std::equal(last.begin(), last.end(), gathered.begin() + 128) ? "" : "all_gather gave wrong values";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclExchangeTest, AnExchangeIsCapturedOnceItHasRun) {
  const std::vector<std::string> problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Bytes in = InputBytes(DataType::kInt16, self.rank(), 50), out(100);
    CollectiveRequest request =
        RequestOf(CollectiveKind::kAllReduce, DataType::kInt16, ReduceOp::kSum, self.rank(), 50);
    request.in = in.data();
    request.out = out.data();
    if (!self.Run(request).ok()) return "the first call failed";
    out.assign(100, std::byte{});
    FakeStream stream;
    stream.BeginCapture();
    const runtime::Work work = self.Launch(request, stream.get());
    cudaGraphExec_t const graph = stream.EndCapture();
    if (!work.Done() || !work.status().ok()) return "capture: " + work.status().ToString();
    if (out != Bytes(100)) return "a captured call ran";
    stream.Replay(graph);
    return out == Folded(DataType::kInt16, ReduceOp::kSum, 2, 50, 0, 50) ? "" : "the replay gave other bits";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclExchangeTest, FactorsGoToNccl) {
  const std::vector<std::string> problems = RunNcclRanks(3, [](NcclRank& self) -> std::string {
    std::vector<float> in(10, 2), out(10);
    CollectiveRequest request = RequestOf(CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kPreMulSum, 0, 10);
    request.in = in.data();
    request.out = out.data();
    request.factor = 0.5 * (self.rank() + 1);
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    if (out != std::vector<float>(10, 6)) return "float32 gave " + std::to_string(out[0]);
    std::vector<uint16_t> halves(4, 0x4000), half_sum(4);  // bfloat16 2
    request = RequestOf(CollectiveKind::kReduceScatter, DataType::kBFloat16, ReduceOp::kPreMulSum, 0, 1);
    halves.resize(3);
    request.in = halves.data();
    request.out = half_sum.data();
    request.factor = 0.25;
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    if (half_sum[0] != 0x3fc0) return "bfloat16 gave other bits";  // 1.5
    std::vector<int64_t> numbers(5, 7), sum(5);
    request = RequestOf(CollectiveKind::kAllReduce, DataType::kInt64, ReduceOp::kPreMulSum, 0, 5);
    request.in = numbers.data();
    request.out = sum.data();
    request.factor = -1 - self.rank();
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    return sum == std::vector<int64_t>(5, -42) ? "" : "int64 gave " + std::to_string(sum[0]);
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclExchangeTest, Float8IsReducedByNcclWhereItCan) {
  const std::vector<std::string> problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    std::vector<uint8_t> in(20, 0x38), out(20);  // e4m3 1
    CollectiveRequest request = RequestOf(CollectiveKind::kAllReduce, DataType::kFloat8E4M3, ReduceOp::kSum, 0, 20);
    request.in = in.data();
    request.out = out.data();
    if (const absl::Status status = self.Run(request); !status.ok()) return status.ToString();
    if (out != std::vector<uint8_t>(20, 0x40)) return "wrong values";
    const std::string text = self.provider().Explain(request);
    const bool native = TheFake().Find<void*>("ncclCommRevoke") != nullptr;  // not the oldest
    return (text.find("exchanged") == std::string::npos) == native ? "" : text;
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

}  // namespace
}  // namespace cohort::comm
