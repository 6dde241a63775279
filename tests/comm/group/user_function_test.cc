// The effect of a user's reduction function on the group that calls it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {
namespace {

using comm::CallOptions;
using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using comm::UserReduceOp;

void Keep(void* out, const void* a, int64_t count) { std::memmove(out, a, static_cast<size_t>(count) * sizeof(float)); }

// "It may call Communicator::Abort": while the engine stands inside the function, in the middle of a plan.
void AbortOwnGroup(void* out, const void* a, const void* /*b*/, int64_t count, DataType /*dtype*/, void* context) {
  static_cast<Communicator*>(context)->Abort("bad data");
  Keep(out, a, count);
}

void Throw(void* /*out*/, const void* /*a*/, const void* /*b*/, int64_t /*count*/, DataType /*dtype*/, void*) {
  throw std::runtime_error("no such value");
}

// Against its contract, which must cost no more than the group.
void WaitForOwnGroup(void* out, const void* a, const void* /*b*/, int64_t count, DataType /*dtype*/, void* context) {
  CallOptions options;
  options.timeout = std::chrono::milliseconds(200);
  (void)static_cast<Communicator*>(context)->Barrier(options).Wait();
  Keep(out, a, count);
}

using Function = decltype(UserReduceOp::function);

// Expects this end of the ranks' all-reduces, one after another on new groups of the world.
void ExpectEnd(int ranks, int64_t count, Function function, absl::StatusCode code) {
  ProcessClusterOptions options;
  options.ranks = ranks;
  for (const RankResult& result : RunProcesses(options, [&](ProcessRank& rank) -> std::string {
         const auto group = rank.world->Duplicate();
         if (!group.ok()) return group.status().ToString();
         const UserReduceOp op = {.function = function, .context = group->get(), .name = "wild"};
         CallOptions call;
         call.user_op = &op;
         call.timeout = std::chrono::seconds(20);
         std::vector<float> values(static_cast<size_t>(count), 1);
         absl::Status status;
         for (int i = 0; i < 100 && status.ok(); ++i) {
           status = (*group)->AllReduce(values, values, ReduceOp::kUser, call).Wait();
         }
         if (status.code() != code) return status.ToString();
         return std::string(rank.world->Barrier().Wait(std::chrono::seconds(20)).message());
       })) {
    EXPECT_EQ(result.text, "") << ranks << " ranks, " << count << " elements";
    EXPECT_EQ(result.signal, 0);
    EXPECT_FALSE(result.hung);
  }
}

TEST(UserFunctionTest, AUserFunctionMayAbortItsGroup) {
  for (const int ranks : {2, 3}) {
    for (const int64_t count : {1, 1000, 1 << 20}) ExpectEnd(ranks, count, AbortOwnGroup, absl::StatusCode::kAborted);
  }
}

TEST(UserFunctionTest, AUserFunctionThatThrowsFailsItsOperation) {
  for (const int ranks : {2, 3}) {
    for (const int64_t count : {1, 1000, 1 << 20}) ExpectEnd(ranks, count, Throw, absl::StatusCode::kInternal);
  }
}

TEST(UserFunctionTest, AUserFunctionThatWaitsForItsGroupReachesTheTimeout) {
  for (const int64_t count : {1, 1 << 20}) {
    ExpectEnd(2, count, WaitForOwnGroup, absl::StatusCode::kDeadlineExceeded);
  }
}

}  // namespace
}  // namespace cohort::testing
