// The caller's arguments: what is refused, and that the text says why.
#include "comm/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
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
      {"more than 2^63 bytes", all_reduce(ConstBuffer(memory, std::numeric_limits<int64_t>::max() / 2), out)},
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
      {"peer is the caller, rank 1, itself", {CollectiveKind::kRecv, {}, out, ReduceOp::kSum, -1, kRank}},
  };
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
