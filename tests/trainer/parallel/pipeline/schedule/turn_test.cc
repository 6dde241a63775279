// Every schedule's messages over the fake NCCL, where a send waits for its receiver and a rank has one stream: no rank
// stands still. Ranks are threads. The host's part is the pipeline's (stage_messages.cc): the group's first call is one
// of all ranks, sizes of outputs come through host memory, and a pass waits for what it receives.
#include "cohort/trainer/parallel/pipeline/schedule/turn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "tests/comm/nccl/nccl_world.h"

namespace cohort::trainer {
namespace {

using comm::CollectiveKind;
using comm::CollectiveRequest;
using comm::NcclRank;
using std::chrono::seconds;
using Key = std::tuple<ActionKind, int, int>;

Key KeyOf(const Action& action) { return {action.kind, action.stage, action.micro_batch}; }

int32_t NumberOf(const Action& message) {
  return message.stage * 1000 + message.micro_batch * 2 + (message.kind == ActionKind::kSendForward ? 0 : 1);
}

// Sizes on their way through host memory, which holds a message whether or not somebody waits for it.
class Sizes {
 public:
  void Send(int stage) {
    const runtime::MutexLock lock(mutex_);
    sent_.insert(stage);
    changed_.NotifyAll();
  }
  bool Await(int stage, seconds limit) {
    const runtime::Deadline deadline = runtime::Deadline::After(limit);
    const runtime::MutexLock lock(mutex_);
    while (sent_.count(stage) == 0) {
      if (!changed_.Wait(mutex_, deadline)) return false;
    }
    return true;
  }

 private:
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::set<int> sent_ COHORT_GUARDED_BY(mutex_);
};

// One rank's step.
class Step {
 public:
  Step(const Schedule& schedule, NcclRank& self, Sizes& sizes, bool batches, seconds limit)
      : schedule_(schedule), self_(self), sizes_(sizes), batches_(batches), limit_(limit) {}

  // Returns "" or what was wrong.
  std::string Run() {
    const std::vector<Action>& actions = schedule_.by_rank[static_cast<size_t>(self_.rank())];
    std::string problem = Connect();
    for (size_t at = 0; at < actions.size() && problem.empty();) {
      const std::span<const Action> turn = TurnAt(actions, at);
      problem = turn.empty() ? Pass(actions[at]) : Turn(turn);
      at += std::max<size_t>(turn.size(), 1);
    }
    for (auto& [key, message] : messages_) {  // their memory must stay until then
      const absl::Status status = message.work.Wait(limit_);
      if (problem.empty() && !status.ok()) problem = status.ToString();
    }
    return problem;
  }

 private:
  struct Message {
    int32_t value = 0;
    runtime::Work work;
  };

  // Making NCCL's communicator takes all ranks: were it left to the first messages, the first stage would wait for the
  // last one, which waits for its output.
  std::string Connect() {
    CollectiveRequest barrier;
    barrier.kind = CollectiveKind::kBarrier;
    const absl::Status status = self_.Run(barrier, limit_);
    return status.ok() ? "" : status.ToString();
  }

  std::string Turn(std::span<const Action> turn) {
    const TurnParts parts = PartsOf(turn, [this](int stage) { return known_.count(stage) > 0; });
    for (const Action& send : parts.sends) {
      if (send.kind == ActionKind::kSendForward && known_.insert(send.stage).second) sizes_.Send(send.stage);
    }
    std::vector<Action> first = parts.sends;
    first.insert(first.end(), parts.now.begin(), parts.now.end());
    Start(first);
    for (const Action& receive : parts.later) {
      if (known_.insert(receive.stage - 1).second && !sizes_.Await(receive.stage - 1, limit_)) {
        return ToString(receive) + ": no sizes";
      }
    }
    Start(parts.later);
    return "";
  }

  void Start(const std::vector<Action>& messages) {
    const runtime::EngineLock lock(self_.runtime().engine());
    if (batches_) self_.provider().BatchBegin();
    for (const Action& action : messages) {
      Message& message = messages_[KeyOf(action)];
      CollectiveRequest request;
      request.kind = IsSend(action.kind) ? CollectiveKind::kSend : CollectiveKind::kRecv;
      if (IsSend(action.kind)) message.value = NumberOf(action);
      request.in = request.out = &message.value;
      request.count = 1;
      request.dtype = comm::DataType::kInt32;
      request.peer = schedule_.PeerOf(action);
      message.work = self_.Launch(request, nullptr, limit_);
    }
    if (batches_) self_.provider().BatchEnd();
  }

  // Waits for what a pass needs from another rank.
  std::string Pass(const Action& pass) {
    const bool forward = pass.kind == ActionKind::kForward;
    if (!forward && pass.kind != ActionKind::kBackward && pass.kind != ActionKind::kInputGradient) return "";
    const Action receive{forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward, pass.stage, pass.micro_batch};
    const auto found = messages_.find(KeyOf(receive));
    if (found == messages_.end()) return "";  // from this rank, or the pass begins the batch
    const absl::Status status = found->second.work.Wait(limit_);
    if (!status.ok()) return ToString(pass) + ": " + status.ToString();
    const int32_t wanted = NumberOf(OtherEnd(receive));
    return found->second.value == wanted ? "" : ToString(pass) + " got " + std::to_string(found->second.value);
  }

  const Schedule& schedule_;
  NcclRank& self_;
  Sizes& sizes_;
  const bool batches_;
  const seconds limit_;
  std::set<int> known_;
  std::map<Key, Message> messages_;
};

std::vector<std::string> RunSchedule(const Schedule& schedule, bool batches, seconds limit) {
  comm::TheFake().configure(kFakeWorks, 0, -1, false);
  Sizes sizes;
  return comm::RunNcclRanks(schedule.ranks,
                            [&](NcclRank& self) { return Step(schedule, self, sizes, batches, limit).Run(); });
}

TEST(Turn, NoRankStandsStillWhereSendsWait) {
  for (const ScheduleInfo& info : Schedules()) {
    const int most = std::min(info.traits.most_stages_per_rank, info.traits.least_stages_per_rank + 1);
    for (const int ranks : {2, 3, 4, 6}) {
      for (int laps = info.traits.least_stages_per_rank; laps <= most; ++laps) {
        for (const int micro_batches : {1, 4, 7}) {
          SCOPED_TRACE(std::string(info.name) + ", " + std::to_string(ranks) + " ranks, " +
                       std::to_string(ranks * laps) + " stages, " + std::to_string(micro_batches) + " micro-batches");
          const auto schedule = BuildSchedule(info.name, {ranks, ranks * laps, micro_batches});
          ASSERT_TRUE(schedule.ok()) << schedule.status();
          for (const std::string& problem : RunSchedule(*schedule, /*batches=*/true, seconds(20))) {
            ASSERT_EQ(problem, "");
          }
        }
      }
    }
  }
}

// The test above would see a turn's messages started one after another, because the fake's sends wait.
TEST(Turn, SendingOneMessageAtATimeStandsStill) {
  const auto schedule = BuildSchedule("1f1b", {2, 2, 4});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const std::vector<std::string> problems = RunSchedule(*schedule, /*batches=*/false, seconds(1));
  EXPECT_TRUE(
      std::any_of(problems.begin(), problems.end(),
                  [](const std::string& problem) { return problem.find("DEADLINE_EXCEEDED") != std::string::npos; }))
      << problems[0] << "\n"
      << problems[1];
}

}  // namespace
}  // namespace cohort::trainer
