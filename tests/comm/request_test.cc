// The caller's arguments: what is refused, and that the text says why.
#include "cohort/comm/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <source_location>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::comm {
namespace {

constexpr int kRank = 1;
constexpr int kSize = 4;

absl::StatusOr<CollectiveRequest> Make(const CallArguments& arguments) {
  CollectiveRequest request;
  const absl::Status status = MakeRequest(arguments, kRank, kSize, &request);
  if (!status.ok()) return status;
  return request;
}

using ::testing::HasSubstr;

struct Refused {
  const char* why;
  CallArguments arguments;
};

float memory[1024];
float other[1024];

std::vector<Refused> RefusedCalls() {
  const ConstBuffer in(memory, 8);
  const Buffer out(other, 8);
  const auto all_reduce = [](ConstBuffer a, Buffer b) { return CallArguments{CollectiveKind::kAllReduce, a, b}; };
  return {
      {"in is null but has 8 elements", all_reduce(ConstBuffer(nullptr, 8, DataType::kFloat32), out)},
      {"out is null but has 8 elements", all_reduce(in, Buffer(nullptr, 8, DataType::kFloat32))},
      {"in has -1 elements", all_reduce(ConstBuffer(memory, -1), out)},
      {"in has 8 elements and out has 7", all_reduce(in, Buffer(other, 7))},
      {"in holds float32 and out holds int32", all_reduce(in, Buffer(other, 8, DataType::kInt32))},
      {"which is no DataType", all_reduce(ConstBuffer(memory, 8, static_cast<DataType>(99)), out)},
      {"more than 2^56 bytes", all_reduce(ConstBuffer(memory, std::numeric_limits<int64_t>::max()), out)},
      {"more than 2^56 bytes", all_reduce(ConstBuffer(memory, (int64_t{1} << 54) + 1), out)},
      {"more than 2^56 bytes",
       {CollectiveKind::kAllGather, ConstBuffer(memory, int64_t{1} << 54), Buffer(other, int64_t{1} << 54)}},
      {"different memory", all_reduce(in, Buffer(other, 8, DataType::kFloat32, MemoryKind::kCuda))},
      {"in and out overlap", all_reduce(in, Buffer(memory + 1, 8))},
      {"which is no ReduceOp", {CollectiveKind::kAllReduce, in, out, static_cast<ReduceOp>(17)}},
      {"root is 4; the group's ranks are 0 to 3", {CollectiveKind::kReduce, in, out, ReduceOp::kSum, 4}},
      {"root is -1", {CollectiveKind::kBroadcast, in, out, ReduceOp::kSum, -1}},
      {"4 * count", {CollectiveKind::kAllGather, in, Buffer(other, 31)}},
      {"4 * count", {CollectiveKind::kReduceScatter, ConstBuffer(memory, 31), out}},
      {"in must have 4 * count and out 4 * count",
       {CollectiveKind::kAllToAll, ConstBuffer(memory, 31), Buffer(other, 31)}},
      {"in == out + rank * count", {CollectiveKind::kAllGather, ConstBuffer(memory, 8), Buffer(memory, 32)}},
      {"out == in + rank * count", {CollectiveKind::kReduceScatter, ConstBuffer(memory, 32), Buffer(memory + 16, 8)}},
      {"peer is 4", {CollectiveKind::kSend, in, {}, ReduceOp::kSum, -1, 4}},
      {"peer is the caller, rank 1, itself",
       {CollectiveKind::kRecv, {}, Buffer(other, 8, DataType::kFloat32, MemoryKind::kCuda), ReduceOp::kSum, -1, kRank}},
  };
}

TEST(RequestTest, ARefusalNamesTheCallSite) {
  const auto here = std::source_location::current();
  CallArguments arguments{CollectiveKind::kAllReduce, ConstBuffer(memory, 8), Buffer(other, 7)};
  EXPECT_THAT(std::string(Make(arguments).status().message()), HasSubstr("all_reduce: in has 8 elements"));
  arguments.site = here;
  EXPECT_THAT(std::string(Make(arguments).status().message()),
              HasSubstr("all_reduce at request_test.cc:" + std::to_string(here.line()) + ": in has 8 elements"));
}

TEST(MakeRequestTest, RefusesWithTheReason) {
  for (const Refused& refused : RefusedCalls()) {
    const auto request = Make(refused.arguments);
    ASSERT_TRUE(absl::IsInvalidArgument(request.status())) << refused.why << ": " << request.status();
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(refused.why));
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(std::string(Name(refused.arguments.kind)) + ": "));
  }
}

TEST(MakeRequestTest, AcceptsInPlaceAsNcclDefinesIt) {
  const std::vector<CallArguments> calls = {
      {CollectiveKind::kAllReduce, ConstBuffer(memory, 8), Buffer(memory, 8)},
      {CollectiveKind::kAllGather, ConstBuffer(memory + 8 * kRank, 8), Buffer(memory, 32)},
      {CollectiveKind::kReduceScatter, ConstBuffer(memory, 32), Buffer(memory + 8 * kRank, 8)},
      {CollectiveKind::kAllToAll, ConstBuffer(memory, 32), Buffer(memory, 32)},
      {CollectiveKind::kGather, ConstBuffer(memory + 8 * kRank, 8), Buffer(memory, 32), ReduceOp::kSum, kRank},
      {CollectiveKind::kScatter, ConstBuffer(memory, 32), Buffer(memory + 8 * kRank, 8), ReduceOp::kSum, kRank},
  };
  for (const CallArguments& call : calls) {
    const auto request = Make(call);
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_TRUE(request->in_place) << Name(call.kind);
    EXPECT_EQ(request->count, 8) << Name(call.kind);
  }
}

TEST(MakeRequestTest, IgnoresWhatTheRankDoesNotUse) {
  const auto reduce = Make({CollectiveKind::kReduce, ConstBuffer(memory, 8), {}, ReduceOp::kSum, 0});
  ASSERT_TRUE(reduce.ok()) << reduce.status();
  EXPECT_EQ(reduce->out, nullptr);
  const auto scatter = Make({CollectiveKind::kScatter, {}, Buffer(memory, 8), ReduceOp::kSum, 0});
  ASSERT_TRUE(scatter.ok()) << scatter.status();
  EXPECT_EQ(scatter->count, 8);
}

struct RefusedLayout {
  const char* why;
  CollectiveKind kind;
  ConstBuffer in;
  std::vector<int64_t> in_counts;
  Buffer out;
  std::vector<int64_t> out_counts;
  std::vector<int64_t> out_displacements;
};

absl::Status MakeUnequal(const RefusedLayout& call, BlockTable* table, CollectiveRequest* request) {
  return MakeUnequalRequest({call.kind, call.in, call.out, ReduceOp::kSum, kRank}, {call.in_counts, {}},
                            {call.out_counts, call.out_displacements}, kRank, kSize, table, request);
}

TEST(MakeUnequalRequestTest, RefusesWithTheArgumentsName) {
  const ConstBuffer in(memory, 2);
  const Buffer out(other, 8);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::vector<RefusedLayout> calls = {
      {"out_blocks.counts has 3 values; the group has 4", CollectiveKind::kAllGatherV, in, {}, out, {2, 2, 2}, {}},
      {"out_blocks.counts[2] is -1", CollectiveKind::kAllGatherV, in, {}, out, {2, 2, -1, 2}, {}},
      {"out_blocks.displacements has 2 values", CollectiveKind::kGatherV, in, {}, out, {2, 2, 2, 2}, {0, 2}},
      {"out_blocks.displacements[1] is -4", CollectiveKind::kGatherV, in, {}, out, {2, 2, 2, 2}, {0, -4, 2, 4}},
      {"block 3 of out, 2 elements from 7 on, reaches beyond out, which has 8",
       CollectiveKind::kGatherV,
       in,
       {},
       out,
       {2, 2, 2, 2},
       {0, 2, 4, 7}},
      {"block 1 of out", CollectiveKind::kGatherV, in, {}, out, {2, kMost, kMost, 2}, {0, 2, 4, 6}},
      {"block 0 (2 elements from 1 on) and block 3 (2 elements from 2 on) overlap",
       CollectiveKind::kGatherV,
       in,
       {},
       out,
       {2, 2, 2, 2},
       {1, 4, 6, 2}},
      {"has 2 elements in in and 3 in out", CollectiveKind::kAllGatherV, in, {}, out, {2, 3, 2, 1}, {}},
      {"in_blocks.counts[0] is -2", CollectiveKind::kScatterV, ConstBuffer(memory, 8), {-2, 2, 2, 2}, out, {}, {}},
      {"in and out overlap; they must be apart, or in place (the caller's block",
       CollectiveKind::kAllGatherV,
       ConstBuffer(other, 2),
       {},
       out,
       {2, 2, 2, 2},
       {}},
      {"in place (in == out with equal layouts)",
       CollectiveKind::kAllToAllV,
       ConstBuffer(other, 8),
       {2, 2, 2, 2},
       out,
       {1, 2, 2, 2},
       {}},
  };
  for (const RefusedLayout& call : calls) {
    BlockTable table;
    CollectiveRequest request;
    const absl::Status status = MakeUnequal(call, &table, &request);
    ASSERT_TRUE(absl::IsInvalidArgument(status)) << call.why << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(call.why));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(Name(call.kind)) + ": "));
  }
}

TEST(MakeUnequalRequestTest, AcceptsGapsZerosAndInPlace) {
  BlockTable table;
  CollectiveRequest request;
  const RefusedLayout call = {
      "", CollectiveKind::kAllGatherV, ConstBuffer(other + 5, 2), {}, Buffer(other, 8), {0, 2, 3, 0}, {9, 5, 1, 9}};
  const absl::Status status = MakeUnequal(call, &table, &request);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(request.in_place);
  EXPECT_EQ(request.blocks, &table);
  EXPECT_EQ(table.out_places, (std::vector<int64_t>{9, 5, 1, 9}));
  EXPECT_EQ(table.in_counts, (std::vector<int64_t>{2}));
}

// Counts beyond 2^31 elements keep their bits.
TEST(MakeUnequalRequestTest, CountsHave64Bits) {
  BlockTable table;
  CollectiveRequest request;
  constexpr int64_t kLarge = int64_t{5} << 32;
  const RefusedLayout call = {"",
                              CollectiveKind::kScatterV,
                              ConstBuffer(memory, 4 * kLarge),
                              {kLarge, kLarge, kLarge, kLarge},
                              Buffer(memory + 3, kLarge),
                              {},
                              {}};
  const absl::Status overlap = MakeUnequal(call, &table, &request);
  EXPECT_TRUE(absl::IsInvalidArgument(overlap)) << overlap;
  EXPECT_EQ(table.in_places[3], 3 * kLarge);
}

TEST(MakeRequestTest, CountsOfZeroNeedNoMemory) {
  const ConstBuffer in(nullptr, 0, DataType::kFloat64);
  const Buffer out(nullptr, 0, DataType::kFloat64);
  for (int kind = 1; kind <= static_cast<int>(CollectiveKind::kAllToAll); ++kind) {
    const auto request = Make({static_cast<CollectiveKind>(kind), in, out, ReduceOp::kSum, 1, 0});
    EXPECT_TRUE(request.ok()) << request.status();
  }
}

}  // namespace
}  // namespace cohort::comm
