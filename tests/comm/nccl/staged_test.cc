// Calls on CUDA memory that go through host memory, of communicators as users have them: on several devices, and from
// inside each other.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/engine/engine.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {
namespace {

using testing::ProcessRank;
using testing::RunProcesses;
using Values = std::vector<int32_t>;

void UseTheFake() {
  setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
  setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
}

CallOptions Staged() {
  CallOptions options;
  options.algorithm = "staged";
  options.timeout = std::chrono::seconds(20);
  return options;
}

Buffer On(int device, Values& values) {
  return Buffer(values.data(), static_cast<int64_t>(values.size()), DataType::kInt32, MemoryKind::kCuda, device);
}

bool All(const Values& values, int32_t expected) {
  return std::all_of(values.begin(), values.end(), [=](int32_t value) { return value == expected; });
}

// "" or what was wrong: all ranks' sum, and a message from rank 0 to rank 1.
std::string CheckOn(int device, ProcessRank& self) {
  Values values(5000, self.rank + 1), message(7, self.rank == 0 ? 40 + device : 0);
  absl::Status status = self.world->AllReduce(On(device, values), On(device, values), ReduceOp::kSum, Staged()).Wait();
  if (!status.ok()) return "all_reduce: " + status.ToString();
  if (!All(values, 3)) return "all_reduce gave wrong values";
  status = self.rank == 0 ? self.world->Send(On(device, message), 1, Staged()).Wait()
                          : self.world->Recv(On(device, message), 0, Staged()).Wait();
  if (!status.ok()) return "message: " + status.ToString();
  return All(message, 40 + device) ? "" : "recv gave wrong values";
}

TEST(NcclStagedTest, EveryDeviceHasLinksOfItsOwn) {
  for (const int nodes : {1, 2}) {
    if (nodes > 1 && !testing::WhyHostsCannotTalk().empty()) continue;
    SCOPED_TRACE(nodes);
    const auto results = RunProcesses({.ranks = 2, .nodes = nodes}, [](ProcessRank& self) -> std::string {
      UseTheFake();
      for (const int device : {0, 1, 7, 1, 0}) {
        if (std::string problem = CheckOn(device, self); !problem.empty()) {
          return "device " + std::to_string(device) + ": " + problem;
        }
      }
      int32_t one = 1;
      const absl::Status status = self.world->AllReduce({&one, 1}, {&one, 1}, ReduceOp::kSum).Wait();
      return status.ok() && one == 2 ? "" : "host memory: " + status.ToString();
    });
    for (const auto& result : results) EXPECT_EQ(result.text, "");
  }
}

TEST(NcclStagedTest, TuningTablesThatDifferAreAMismatch) {
  for (const int nodes : {1, 2}) {
    if (nodes > 1 && !testing::WhyHostsCannotTalk().empty()) continue;
    SCOPED_TRACE(nodes);
    const auto results = RunProcesses({.ranks = 2, .nodes = nodes}, [](ProcessRank& self) -> std::string {
      UseTheFake();
      CommunicatorOptions options;
      if (self.rank == 1) options.tuning = "local.alpha_us=1.25";  // which chooses the same algorithm
      const auto group = Communicator::World(*self.runtime, options);
      if (!group.ok()) return group.status().ToString();
      Values values(5000, self.rank);
      const auto sum = [&] {
        return (*group)->AllReduce(On(0, values), On(0, values), ReduceOp::kSum, Staged()).Wait();
      };
      absl::Status status = sum();
      if (status.ok()) status = sum();  // the other rank may have found it
      if (!absl::IsFailedPrecondition(status)) return "not noticed: " + status.ToString();
      return status.message().find("with another algorithm or tuning table") == std::string::npos ? status.ToString()
                                                                                                  : "";
    });
    for (const auto& result : results) EXPECT_EQ(result.text, "");
  }
}

// Calls `call` once from inside the engine, the first time that it is driven.
class FromInside : public runtime::ProgressSource {
 public:
  FromInside(runtime::Engine& engine, std::function<void()> call) : engine_(engine), call_(std::move(call)) {
    const runtime::EngineLock lock(engine_);
    engine_.Add(this);
  }
  ~FromInside() override {
    const runtime::EngineLock lock(engine_);
    engine_.Remove(this);
  }

 private:
  bool Poll() override {
    if (const auto call = std::exchange(call_, nullptr); call != nullptr) call();
    return false;
  }
  bool Active() const override { return call_ != nullptr; }

  runtime::Engine& engine_;
  std::function<void()> call_;
};

TEST(NcclStagedTest, AStagedCallInsideAnotherIsRefusedAndTheGroupGoesOn) {
  const auto results = RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    UseTheFake();
    Values values(2'000'000, self.rank + 1), message(500'000, self.rank == 0 ? 9 : 0);
    const auto sum = [&] {
      return self.world->AllReduce(On(0, values), On(0, values), ReduceOp::kSum, Staged()).Wait();
    };
    if (self.rank == 1) {
      if (!self.meet("inside", 2)) return "the call from inside was not made";
      if (const absl::Status status = sum(); !status.ok()) return "all_reduce: " + status.ToString();
      const absl::Status status = self.world->Recv(On(0, message), 0, Staged()).Wait();
      if (!status.ok() || !All(message, 9)) return "recv: " + status.ToString();
      return All(values, 3) ? "" : "all_reduce gave wrong values";
    }
    Work nested = Work::Finished(absl::UnknownError("not made"));
    {
      const FromInside inside(self.runtime->engine(), [&] {
        self.meet("inside", 1);
        nested = self.world->Send(On(0, message), 1, Staged());
      });
      if (const absl::Status status = sum(); !status.ok()) return "all_reduce: " + status.ToString();
    }
    if (!All(values, 3)) return "all_reduce gave wrong values";
    const absl::Status refused = nested.Wait();
    if (!absl::IsFailedPrecondition(refused)) return "not refused: " + refused.ToString();
    if (refused.message().find("comes from inside") == std::string::npos) return refused.ToString();
    return std::string(self.world->Send(On(0, message), 1, Staged()).Wait().message());
  });
  for (const auto& result : results) EXPECT_EQ(result.text, "");
}

}  // namespace
}  // namespace cohort::comm
