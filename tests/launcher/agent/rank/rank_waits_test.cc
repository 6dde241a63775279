// Random programs of messages and collectives over two groups, run by a model of ranks that writes real segments. Real
// agents' looks and a real rendezvous judge them: exactly the ranks that wait for each other are told, and no other.
#include "cohort/launcher/agent/rank/rank_waits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/comm/types.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/segment.h"
#include "cohort/runtime/segment/wait_graph.h"
#include "cohort/runtime/segment/wait_state.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using comm::CollectiveKind;
using std::chrono::milliseconds;

constexpr milliseconds kStep{10};
constexpr int kStepsPerLook = 5;  // of a waiting rank, and of an agent
constexpr uint64_t kLarge = runtime::kMostBufferedBytes + 1;

struct Op {
  CollectiveKind kind;
  int group;
  int peer = -1;  // or root
  uint64_t bytes = 16;
  bool waits = true;
};

struct Program {
  std::vector<std::vector<int>> groups;  // members
  std::vector<std::vector<Op>> ops;      // by rank
};

bool IsMessage(CollectiveKind kind) { return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv; }

// Every rank makes its calls in one order of all calls, so that they always end.
Program Valid(int ranks, int calls, std::mt19937& random) {
  const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Program program;
  program.ops.resize(static_cast<size_t>(ranks));
  program.groups.resize(2);
  for (int rank = 0; rank < ranks; ++rank) {
    program.groups[0].push_back(rank);
    if (rank < 2 || below(2) == 0) program.groups[1].push_back(rank);
  }
  constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kBarrier, CollectiveKind::kBroadcast,
                                       CollectiveKind::kGather};
  for (int i = 0; i < calls; ++i) {
    const int group = below(2);
    const std::vector<int>& members = program.groups[static_cast<size_t>(group)];
    const int a = members[static_cast<size_t>(below(static_cast<int>(members.size())))];
    if (below(3) == 0) {
      const CollectiveKind kind = kKinds[below(4)];
      for (const int member : members) program.ops[static_cast<size_t>(member)].push_back({kind, group, a, 16, true});
      continue;
    }
    int b = a;
    while (b == a) b = members[static_cast<size_t>(below(static_cast<int>(members.size())))];
    const uint64_t bytes = below(2) == 0 ? kLarge : 16;
    program.ops[static_cast<size_t>(a)].push_back({CollectiveKind::kSend, group, b, bytes, below(4) != 0});
    program.ops[static_cast<size_t>(b)].push_back({CollectiveKind::kRecv, group, a, bytes, below(4) != 0});
  }
  return program;
}

// Some ranks make neighbouring calls in the other order: often, not always, a deadlock.
void Disturb(Program* program, std::mt19937& random) {
  for (std::vector<Op>& ops : program->ops) {
    for (size_t i = 0; i + 1 < ops.size(); ++i) {
      const Op& a = ops[i];
      const Op& b = ops[i + 1];
      const bool ordered =
          a.group == b.group && ((!IsMessage(a.kind) && !IsMessage(b.kind)) || (a.kind == b.kind && a.peer == b.peer));
      if (!ordered && random() % 12 == 0) std::swap(ops[i], ops[i + 1]);
    }
  }
}

// One rank: its program, and what others see of it.
struct Rank {
  std::unique_ptr<runtime::Segment> segment;
  int node = 0;
  int local_rank = 0;
  size_t next = 0;     // op
  int busy_steps = 0;  // computes
  int stopped_steps = 0;
  int phase = 0;      // of its looks
  bool bound = true;  // one thread
  bool failed = false;
  uint64_t waits_for = 0;  // index of `calls` + 1
  struct Call {
    Op op;
    uint64_t sequence = 0;
    uint64_t ticket = 0;
    int travels = -1;  // steps until it is done, once nothing is lacking; -1: not yet known
    bool done = false;
  };
  std::vector<Call> calls;
  std::map<std::tuple<int, int, int>, uint64_t> made;  // by group, direction (0: collective) and peer
  bool waiting() const { return waits_for != 0; }
};

class World {
 public:
  World(Program program, int nodes, unsigned seed)
      : program_(std::move(program)),
        random_(seed),
        job_(static_cast<uint32_t>(nodes), static_cast<uint32_t>(program_.ops.size()) / static_cast<uint32_t>(nodes),
             "continue") {
    job_.JoinAll();
    const int per_node = static_cast<int>(program_.ops.size()) / nodes;
    for (int node = 0; node < nodes; ++node) {
      const v1::ToAgent* assigned = job_.Last(Driver::Of(static_cast<uint32_t>(node)), v1::ToAgent::kAssignment);
      assignments_.push_back(assigned->assignment());
      auto segment = runtime::Segment::Create({.local_ranks = per_node});
      EXPECT_TRUE(segment.ok()) << segment.status();
      segments_.push_back(*std::move(segment));
    }
    for (int node = 0; node < nodes; ++node) {
      agents_.push_back(std::make_unique<RankWaits>(
          [segment = segments_[static_cast<size_t>(node)].get()](int) -> runtime::Segment& { return *segment; },
          &assignments_[static_cast<size_t>(node)]));
      for (int local = 0; local < per_node; ++local) AddRank(node, local);
    }
  }

  // Until nothing has moved for three seconds.
  void Run() {
    for (int quiet = 0; quiet < 300; ++quiet) {
      if (Step()) quiet = 0;
      if (HasFailure()) return;
    }
  }
  bool finished() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
      return !rank.waiting() && rank.next == program_.ops[static_cast<size_t>(&rank - ranks_.data())].size();
    });
  }
  const std::set<int>& declared() const { return declared_; }
  void MayGoOn(int rank) { ranks_[static_cast<size_t>(rank)].bound = false; }
  // The ranks between which waits go round, by the model's own knowledge.
  std::set<int> InCycles() const;

 private:
  static bool HasFailure() { return ::testing::Test::HasFailure(); }
  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  void AddRank(int node, int local);
  bool Step();
  bool StepOf(int rank);
  void Begin(int rank, const Op& op);
  std::vector<int> Lacks(int rank, const Rank::Call& call) const;
  bool NeedsNobody(int rank, const Rank::Call& call) const { return Lacks(rank, call).empty(); }
  bool Finish(Rank* rank, int index);
  void Look();
  void Ask();
  void Hear(uint32_t node);
  void Fail(Rank* rank);

  Program program_;
  std::mt19937 random_;
  Driver job_;
  std::deque<v1::Assignment> assignments_;
  std::vector<std::unique_ptr<runtime::Segment>> segments_;
  std::vector<std::unique_ptr<RankWaits>> agents_;
  std::vector<Rank> ranks_;
  std::map<uint32_t, int> asked_;    // questions seen, by node
  std::map<uint32_t, size_t> told_;  // verdicts seen
  std::set<int> failed_groups_;
  int step_ = 0;
  std::set<int> declared_;
};

void World::AddRank(int node, int local) {
  Rank rank;
  auto segment = runtime::Segment::Attach(dup(segments_[static_cast<size_t>(node)]->fd()), local);
  ASSERT_TRUE(segment.ok()) << segment.status();
  rank.segment = *std::move(segment);
  rank.node = node;
  rank.local_rank = local;
  rank.phase = Below(kStepsPerLook);
  ranks_.push_back(std::move(rank));
}

std::tuple<int, int, int> KeyOf(const Op& op) {
  return IsMessage(op.kind) ? std::tuple(op.group, static_cast<int>(op.kind), op.peer) : std::tuple(op.group, 0, -1);
}

uint64_t Made(const Rank& rank, const std::tuple<int, int, int>& key) {
  const auto found = rank.made.find(key);
  return found == rank.made.end() ? 0 : found->second;
}

// The ranks whose calls this one still needs.
std::vector<int> World::Lacks(int rank, const Rank::Call& call) const {
  const Op& op = call.op;
  std::vector<int> lacks;
  const auto add_unless_made = [&](int other, const std::tuple<int, int, int>& key) {
    if (Made(ranks_[static_cast<size_t>(other)], key) < call.sequence) lacks.push_back(other);
  };
  if (op.kind == CollectiveKind::kSend) {
    if (op.bytes == kLarge) add_unless_made(op.peer, {op.group, static_cast<int>(CollectiveKind::kRecv), rank});
  } else if (op.kind == CollectiveKind::kRecv) {
    add_unless_made(op.peer, {op.group, static_cast<int>(CollectiveKind::kSend), rank});
  } else if (op.kind == CollectiveKind::kBroadcast) {
    if (rank != op.peer) add_unless_made(op.peer, KeyOf(op));
  } else if (op.kind != CollectiveKind::kGather || rank == op.peer) {
    for (const int member : program_.groups[static_cast<size_t>(op.group)]) add_unless_made(member, KeyOf(op));
  }
  return lacks;
}

void World::Begin(int rank, const Op& op) {
  Rank& self = ranks_[static_cast<size_t>(rank)];
  Rank::Call call;
  call.op = op;
  call.sequence = ++self.made[KeyOf(op)];
  runtime::CallRecord record;
  record.signature.group = static_cast<uint64_t>(op.group) + 1;
  record.signature.epoch = 1;
  record.signature.sequence = call.sequence;
  record.signature.kind = static_cast<uint16_t>(op.kind);
  record.peer_world_rank = op.kind == CollectiveKind::kAllReduce || op.kind == CollectiveKind::kBarrier ? -1 : op.peer;
  record.bytes = op.bytes;
  call.ticket = self.segment->black_box().Start(record);
  self.calls.push_back(call);
  v1::StallReport stall;  // the rank says who belongs to the group
  stall.set_group(record.signature.group);
  const std::vector<int>& members = program_.groups[static_cast<size_t>(op.group)];
  for (const int member : members) stall.mutable_members()->add_ranks(static_cast<uint32_t>(member));
  agents_[static_cast<size_t>(self.node)]->NoteGroup(stall);
  if (op.waits) self.waits_for = self.calls.size();
}

void Hide(Rank* rank) {
  runtime::RankControl& control = rank->segment->control(rank->local_rank);
  runtime::HideWait(control, runtime::ReadWaitNumber(control).number);
}

// Calls of which nothing is lacking any more travel for a while. True when one is done now.
bool World::Finish(Rank* rank, int index) {
  bool moved = false;
  for (Rank::Call& call : rank->calls) {
    if (call.done) continue;
    // A short message to a rank of the same node is taken at once.
    const bool at_once = call.op.kind == CollectiveKind::kSend && call.op.bytes != kLarge;
    if (call.travels < 0 && NeedsNobody(index, call)) call.travels = !at_once && Below(4) == 0 ? Below(60) : 0;
    if (call.travels < 0 || call.travels-- > 0) continue;
    call.done = true;
    moved = true;
    rank->segment->black_box().Finish(call.ticket, runtime::CallState::kDone);
  }
  if (moved) Hide(rank);
  return moved;
}

bool World::StepOf(int index) {
  Rank& rank = ranks_[static_cast<size_t>(index)];
  if (rank.stopped_steps > 0) return --rank.stopped_steps >= 0;
  if (Below(400) == 0) rank.stopped_steps = Below(100);
  if (rank.busy_steps > 0) return --rank.busy_steps >= 0;
  bool moved = Finish(&rank, index);
  runtime::RankControl& control = rank.segment->control(rank.local_rank);
  if (rank.waiting()) {
    const Rank::Call& call = rank.calls[rank.waits_for - 1];
    if (!call.done) {
      if (step_ % kStepsPerLook == rank.phase) runtime::ShowWait(control, call.ticket, call.ticket, rank.bound);
      return moved;
    }
    Hide(&rank);
    rank.waits_for = 0;
    rank.busy_steps = Below(3) == 0 ? Below(150) : 0;
    return true;
  }
  const std::vector<Op>& ops = program_.ops[static_cast<size_t>(index)];
  if (rank.next == ops.size() || rank.failed) return moved;
  if (failed_groups_.contains(ops[rank.next].group)) return rank.failed = true;
  Begin(index, ops[rank.next++]);
  return true;
}

bool World::Step() {
  ++step_;
  bool moved = false;
  for (size_t i = 0; i < ranks_.size(); ++i) moved = StepOf(static_cast<int>(i)) || moved;
  Look();
  job_.Pass(kStep);
  Ask();
  return moved;
}

void World::Look() {
  for (size_t node = 0; node < agents_.size(); ++node) {
    if ((static_cast<size_t>(step_) + node) % kStepsPerLook != 0) continue;
    const auto waits = agents_[node]->Look(job_.now());
    if (!waits.has_value()) continue;
    v1::FromAgent message;
    *message.mutable_waits() = *waits;
    job_.Say(static_cast<uint32_t>(node), message);
  }
}

// Agents answer, most of them soon. What the rendezvous declares must be true.
void World::Ask() {
  for (uint32_t node = 0; node < agents_.size(); ++node) {
    if (const int asked = job_.Count(Driver::Of(node), v1::ToAgent::kWaits); asked > asked_[node] && Below(3) != 0) {
      asked_[node] = asked;
      v1::FromAgent message;
      *message.mutable_waits() = agents_[node]->Answer(job_.Last(Driver::Of(node), v1::ToAgent::kWaits)->waits());
      job_.Say(node, message);
    }
  }
  for (uint32_t node = 0; node < agents_.size(); ++node) Hear(node);
  for (Rank& rank : ranks_) {
    if (rank.waiting() && failed_groups_.contains(rank.calls[rank.waits_for - 1].op.group)) Fail(&rank);
  }
}

// "ranks 0-2,5 wait for each other ...".
std::set<int> RanksIn(const std::string& text) {
  std::set<int> ranks;
  int first = -1;
  int number = -1;
  for (size_t i = text.find(' ') + 1; i < text.size(); ++i) {
    if (text[i] >= '0' && text[i] <= '9') {
      number = std::max(number, 0) * 10 + (text[i] - '0');
      continue;
    }
    if (text[i] == '-') {
      first = number;
    } else {
      for (int rank = first < 0 ? number : first; rank <= number; ++rank) ranks.insert(rank);
      first = -1;
    }
    number = -1;
    if (text[i] == ' ') break;
  }
  return ranks;
}

void World::Hear(uint32_t node) {
  const std::vector<const v1::ToAgent*> told = job_.All(Driver::Of(node), v1::ToAgent::kGroupFailure);
  const std::set<int> truth = InCycles();
  for (; told_[node] < told.size(); ++told_[node]) {
    const v1::GroupFailure& failure = told[told_[node]]->group_failure();
    failed_groups_.insert(static_cast<int>(failure.group()) - 1);
    for (const int rank : RanksIn(failure.text())) {
      declared_.insert(rank);
      EXPECT_TRUE(truth.contains(rank)) << "rank " << rank << ": " << failure.text();
    }
  }
}

// The rank's call ends with the error of its group, and then its program.
void World::Fail(Rank* rank) {
  Hide(rank);
  rank->waits_for = 0;
  rank->failed = true;
}

std::set<int> World::InCycles() const {
  const size_t n = ranks_.size();
  std::vector<std::vector<bool>> reaches(n, std::vector<bool>(n, false));
  for (size_t i = 0; i < n; ++i) {
    const Rank& rank = ranks_[i];
    if (!rank.waiting() || !rank.bound || rank.calls[rank.waits_for - 1].done) continue;
    for (const int other : Lacks(static_cast<int>(i), rank.calls[rank.waits_for - 1])) {
      const Rank& lacked = ranks_[static_cast<size_t>(other)];
      reaches[i][static_cast<size_t>(other)] =
          lacked.waiting() && lacked.bound && !lacked.calls[lacked.waits_for - 1].done;
    }
  }
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        if (reaches[i][k] && reaches[k][j]) reaches[i][j] = true;
      }
    }
  }
  std::set<int> in_cycles;
  for (size_t i = 0; i < n; ++i) {
    bool to = false;
    bool from = false;
    for (size_t c = 0; c < n; ++c) {
      if (!reaches[c][c]) continue;
      to = to || c == i || reaches[i][c];
      from = from || c == i || reaches[c][i];
    }
    if (to && from) in_cycles.insert(static_cast<int>(i));
  }
  return in_cycles;
}

constexpr int kPrograms = 60;

TEST(RankWaitsTest, RandomProgramsThatEndAreNeverSaidToDeadlock) {
  for (unsigned seed = 1; seed <= kPrograms && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    World world(Valid(6, 40, random), seed % 2 == 0 ? 3 : 1, seed);
    world.Run();
    EXPECT_TRUE(world.finished());
    EXPECT_EQ(world.declared(), std::set<int>());
  }
}

TEST(RankWaitsTest, RandomProgramsThatDeadlockNameExactlyThoseRanks) {
  int deadlocked = 0;
  for (unsigned seed = 1; seed <= kPrograms && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Program program = Valid(6, 40, random);
    Disturb(&program, random);
    World world(std::move(program), seed % 2 == 0 ? 3 : 1, seed);
    world.Run();
    deadlocked += world.declared().empty() ? 0 : 1;
    EXPECT_EQ(world.InCycles(), std::set<int>()) << "they were not told";
    EXPECT_TRUE(world.finished() || !world.declared().empty());
  }
  EXPECT_GT(deadlocked, kPrograms / 4);
  EXPECT_LT(deadlocked, kPrograms);
}

// Agents tell watchers of every rank about once a second.
TEST(RankWaitsTest, WatchersAreToldOfTheGroupsThatAreWaitedInAndOfTheLatestCalls) {
  v1::Assignment assignment;
  assignment.mutable_placement()->add_ranks()->set_rank(0);
  auto segment = runtime::Segment::Create({.local_ranks = 1});
  ASSERT_TRUE(segment.ok()) << segment.status();
  auto rank = runtime::Segment::Attach(dup((*segment)->fd()), 0);
  ASSERT_TRUE(rank.ok()) << rank.status();
  RankWaits waits([&](int) -> runtime::Segment& { return **segment; }, &assignment);
  uint64_t ticket = 0;
  for (uint64_t group = 1; group <= 100; ++group) {
    v1::StallReport stall;
    stall.set_group(group);
    stall.mutable_members()->add_ranks(0);
    waits.NoteGroup(stall);
    runtime::CallRecord record;
    record.signature.group = group;
    record.signature.kind = static_cast<uint16_t>(CollectiveKind::kBarrier);
    ticket = (*rank)->black_box().Start(record);
  }
  (void)runtime::ShowWait((*rank)->control(0), ticket, ticket, true);
  v1::NodeView view;
  view.add_ranks();
  waits.Add(&view);
  ASSERT_EQ(view.groups_size(), 1);
  EXPECT_EQ(view.groups(0).group(), 100u);
  const v1::RankWait& wait = view.ranks(0).wait();
  EXPECT_TRUE(wait.forgets());
  ASSERT_EQ(wait.latest_size(), 64);
  EXPECT_EQ(wait.latest(0).group(), 100u);
  EXPECT_EQ(wait.latest(63).group(), 37u);
}

TEST(RankWaitsTest, RandomProgramsOfSeveralThreadsAreLeftAlone) {
  for (unsigned seed = 1; seed <= kPrograms / 2 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Program program = Valid(6, 40, random);
    Disturb(&program, random);
    World world(std::move(program), seed % 2 == 0 ? 3 : 1, seed);
    for (int rank = 0; rank < 3; ++rank) world.MayGoOn(rank);
    world.Run();
    EXPECT_EQ(world.InCycles(), std::set<int>()) << "they were not told";
    for (int rank = 0; rank < 3; ++rank) EXPECT_FALSE(world.declared().contains(rank));
  }
}

}  // namespace
}  // namespace cohort::launcher
