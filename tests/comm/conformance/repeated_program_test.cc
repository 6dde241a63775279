// Random programs that repeat a few small calls again and again, so that most take the short way
// (comm/run/inline_run.h): all ranks draw the same program from a seed and run it with the short way and without.
// Every result equals the reference bit by bit, so both ways give the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/window.h"
#include "tests/comm/conformance/collective_case.h"
#include "tests/support/nightly.h"
#include "tests/support/process_cluster.h"
#include "tests/support/short_calls.h"

namespace cohort::testing {
namespace {

using comm::CollectiveKind;
using comm::Communicator;

// Calls of the shapes, and how many of them took the short way. The parts of two sums add up.
struct Tally {
  uint64_t calls = 0;
  uint64_t begun = 0;  // on the short way
  uint64_t done = 0;   // there, too
};

// One rank's walk through the program of a seed. All ranks draw alike from `shared_`, and each for itself from `own_`:
// whether it is late, waits now or later, and where its buffers lie.
class Walk {
 public:
  Walk(Communicator* world, int rank, uint64_t seed)
      : world_(world), shared_(seed), own_(seed * 31 + static_cast<uint64_t>(rank)) {}

  // "" or what is wrong.
  std::string Run(int steps) {
    if (std::string wrong = MakeGroups(); !wrong.empty()) return wrong;
    const uint64_t shapes = 6 + Draw(shared_, 5);
    const uint64_t first_kind = Draw(shared_, kKinds);
    for (uint64_t i = 0; i < shapes; ++i) shapes_.push_back(DrawShape((first_kind + i) % kKinds));
    for (int step = 0; step < steps; ++step) {
      BeLate();
      if (std::string wrong = Step(static_cast<uint64_t>(step)); !wrong.empty()) {
        return "step " + std::to_string(step) + ": " + wrong;
      }
    }
    return FinishAll(0);
  }

  // Ends the other ranks' walks, too.
  void Abort(const std::string& reason) {
    for (GroupOf& group : groups_) {
      if (group.communicator != nullptr) group.communicator->Abort(reason);
    }
  }

  Tally tally() const {
    Tally tally{.calls = calls_};
    for (const GroupOf& group : groups_) {
      if (group.communicator == nullptr) continue;
      tally.begun += ShortCallsOf(*group.communicator).all();
      tally.done += ShortCallsOf(*group.communicator).done;
    }
    return tally;
  }

 private:
  static constexpr uint64_t kKinds = static_cast<uint64_t>(CollectiveKind::kBarrier);
  static constexpr size_t kRooms = 16;  // of a window; more than calls are under way
  static constexpr size_t kRoomBytes = 16 * 1024;
  static constexpr size_t kMostPending = 5;

  struct GroupOf {
    Communicator* communicator = nullptr;  // null: this rank is no member
    std::unique_ptr<Communicator> owned;
    int size = 0;
    comm::Window window;  // empty: the group has none
    size_t rooms_used = 0;
  };
  struct Shape {
    CollectiveCase the_case;
    size_t group = 0;
  };
  struct Pending {
    std::unique_ptr<CollectiveCase> the_case;
    std::unique_ptr<PendingCase> call;
  };

  static uint64_t Draw(std::mt19937_64& random, uint64_t bound) { return random() % bound; }

  // The world, which has no window; its twin, which has one; and some ranks in reverse order.
  std::string MakeGroups() {
    groups_.push_back({.communicator = world_, .owned = nullptr, .size = world_->size(), .window = {}});
    auto twin = world_->Duplicate();
    if (!twin.ok()) return twin.status().ToString();
    groups_.push_back({.communicator = twin->get(), .owned = *std::move(twin), .size = world_->size(), .window = {}});
    std::vector<int> ranks(static_cast<size_t>(world_->size()));
    std::iota(ranks.rbegin(), ranks.rend(), 0);
    if (ranks.size() > 2) ranks.pop_back();  // rank 0
    GroupOf some{.communicator = nullptr, .owned = nullptr, .size = static_cast<int>(ranks.size()), .window = {}};
    if (std::find(ranks.begin(), ranks.end(), world_->rank()) != ranks.end()) {
      auto made = world_->Subgroup(ranks);
      if (!made.ok()) return made.status().ToString();
      some.owned = *std::move(made);
      some.communicator = some.owned.get();
    }
    groups_.push_back(std::move(some));
    for (size_t i = 1; i < groups_.size(); ++i) {
      if ((i == 2 && Draw(shared_, 2) == 0) || groups_[i].communicator == nullptr) continue;
      auto window = groups_[i].communicator->AllocateWindow(kRooms * kRoomBytes);
      if (!window.ok()) return window.status().ToString();
      groups_[i].window = *std::move(window);
    }
    return "";
  }

  // One in eight is too large for the short way.
  Shape DrawShape(uint64_t kind) {
    Shape shape;
    shape.group = Draw(shared_, groups_.size());
    const auto size = static_cast<uint64_t>(groups_[shape.group].size);
    CollectiveCase& the_case = shape.the_case;
    the_case.kind = static_cast<CollectiveKind>(1 + kind);
    the_case.dtype = static_cast<comm::DataType>(1 + Draw(shared_, comm::kDataTypes - 1));
    the_case.op = static_cast<comm::ReduceOp>(1 + Draw(shared_, comm::kReduceOps - 1));
    if (comm::IsBitwise(the_case.op) && comm::IsFloat(the_case.dtype)) the_case.dtype = comm::DataType::kUint16;
    the_case.determinism = static_cast<comm::Determinism>(Draw(shared_, comm::kDeterminismLevels));
    the_case.count = static_cast<int64_t>(Draw(shared_, 8) == 0 ? Draw(shared_, 3000) : Draw(shared_, 41));
    the_case.root = static_cast<int>(Draw(shared_, size));
    the_case.in_place = Draw(shared_, 2) == 0;
    return shape;
  }

  std::string Step(uint64_t step) {
    const uint64_t what = Draw(shared_, 24);
    const Shape& shape = shapes_[Draw(shared_, shapes_.size())];
    GroupOf& group = groups_[shape.group];
    if (what == 0) {
      CallBatch(group, step);
    } else if (what == 1) {
      CallMessage(group, step);
    } else if (group.communicator != nullptr) {
      ++calls_;
      Start(group, shape.the_case, step);
    }
    if (Draw(own_, 20) == 0) lazy_ = !lazy_;
    if (!lazy_) return FinishAll(0);
    return FinishAll(Draw(own_, kMostPending + 1));
  }

  void Start(GroupOf& group, const CollectiveCase& like, uint64_t salt, comm::Batch* batch = nullptr) {
    auto the_case = std::make_unique<CollectiveCase>(like);
    the_case->salt = salt;
    std::span<std::byte> room;
    if (group.window.data() != nullptr && Draw(own_, 4) != 0) {
      const size_t at = group.rooms_used++ % kRooms * kRoomBytes;
      room = {static_cast<std::byte*>(group.window.data()) + at, kRoomBytes};
    }
    auto call = std::make_unique<PendingCase>(*group.communicator, *the_case, batch, room);
    pending_.push_back({std::move(the_case), std::move(call)});
  }

  // Two small all-reduces as one.
  void CallBatch(GroupOf& group, uint64_t step) {
    CollectiveCase like;
    like.kind = CollectiveKind::kAllReduce;
    like.dtype = comm::DataType::kInt32;
    like.count = static_cast<int64_t>(1 + Draw(shared_, 8));
    if (group.communicator == nullptr) return;
    comm::Batch batch(*group.communicator);
    const size_t first = pending_.size();
    for (int i = 0; i < 2; ++i) Start(group, like, step, &batch);
    const runtime::Work work = batch.Submit();
    for (size_t i = first; i < pending_.size(); ++i) pending_[i].call->set_work(work);
  }

  void CallMessage(GroupOf& group, uint64_t step) {
    CollectiveCase like;
    like.kind = CollectiveKind::kSend;
    like.dtype = comm::DataType::kInt64;
    const auto size = static_cast<uint64_t>(group.size);
    like.count = static_cast<int64_t>(Draw(shared_, 30));
    like.root = static_cast<int>(Draw(shared_, size));
    like.peer = static_cast<int>((static_cast<uint64_t>(like.root) + 1) % size);
    if (group.communicator != nullptr) Start(group, like, step);
  }

  // Until at most `left` are under way; in any order.
  std::string FinishAll(size_t left) {
    while (pending_.size() > left) {
      const auto chosen = pending_.begin() + static_cast<ptrdiff_t>(Draw(own_, pending_.size()));
      const Pending pending = std::move(*chosen);
      pending_.erase(chosen);
      if (std::string wrong = pending.call->Finish(); !wrong.empty()) return wrong;
    }
    return "";
  }

  // Sometimes by less than a short call waits, sometimes by more.
  void BeLate() {
    if (Draw(own_, 4) != 0) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(Draw(own_, 5000));
    while (std::chrono::steady_clock::now() < until) {
    }
  }

  Communicator* const world_;
  std::mt19937_64 shared_;
  std::mt19937_64 own_;
  std::deque<GroupOf> groups_;
  std::vector<Shape> shapes_;
  std::deque<Pending> pending_;
  bool lazy_ = false;
  uint64_t calls_ = 0;
};

// Runs the program of a seed and adds up what all ranks did.
void RunProgram(uint64_t seed, bool short_calls, Tally* sum) {
  ProcessClusterOptions options;
  options.ranks = 2 + static_cast<int>(seed % 4);
  // On one host, on as many as ranks, or on two.
  if (WhyHostsCannotTalk().empty()) options.nodes = std::array{1, 1, options.ranks, 2}[seed / 4 % 4];
  options.progress_thread = seed % 3 == 0;
  const std::vector<RankResult> results = RunProcesses(options, [seed, short_calls](ProcessRank& rank) {
    UseShortCalls(*rank.world, short_calls);
    Walk walk(rank.world, rank.rank, seed);
    const std::string wrong = walk.Run(400);
    if (!wrong.empty()) {
      walk.Abort(wrong);
      return wrong;
    }
    const Tally tally = walk.tally();
    return "tally " + std::to_string(tally.calls) + ' ' + std::to_string(tally.begun) + ' ' +
           std::to_string(tally.done);
  });
  for (const RankResult& result : results) {
    std::istringstream text(result.text);
    std::string word;
    Tally tally;
    text >> word >> tally.calls >> tally.begun >> tally.done;
    ASSERT_TRUE(word == "tally" && text && result.exited) << result.text;
    sum->calls += tally.calls;
    sum->begun += tally.begun;
    sum->done += tally.done;
  }
}

TEST(RepeatedProgramTest, ProgramsGiveTheSameWithTheShortWayAndWithout) {
  const auto programs = static_cast<uint64_t>(Trials(16, 1600));
  Tally with;
  Tally without;
  for (uint64_t seed = 1; seed <= programs && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunProgram(seed, true, &with);
    RunProgram(seed, false, &without);
  }
  RecordProperty("calls", std::to_string(with.calls));
  RecordProperty("begun", std::to_string(with.begun));
  RecordProperty("done", std::to_string(with.done));
  // Which calls get no further there is a matter of time, and of the CPUs.
  EXPECT_GE(with.begun * 3, with.calls);
  EXPECT_GE(with.done * 10, with.calls);
  EXPECT_EQ(without.begun, 0);
}

}  // namespace
}  // namespace cohort::testing
