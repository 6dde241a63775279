#include "tests/support/sim_cluster.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/group/transport_set.h"
#include "cohort/runtime/base/futex.h"
#include "cohort/runtime/segment/call_compare.h"

namespace cohort::testing {
namespace {

using runtime::Deadline;

// Lets one thread go on. (A std::binary_semaphore yields a few times before it sleeps, which is in the way of the
// thread whose turn it is: a tenth of a program's time.)
class Turn {
 public:
  void Give() {
    given_.store(1, std::memory_order_release);
    runtime::FutexWake(given_, runtime::FutexScope::kPrivate, 1);
  }
  // False when it is not given in time.
  bool Take(Deadline deadline) {
    while (given_.exchange(0, std::memory_order_acquire) == 0) {
      if (deadline.passed()) return false;
      runtime::FutexWait(given_, 0, runtime::FutexScope::kPrivate, deadline);
    }
    return true;
  }

 private:
  std::atomic<uint32_t> given_{0};
};

// Ranks run one at a time. On one CPU the next one goes on as the one before sleeps; across CPUs each turn would wait
// until the scheduler of a busy machine lets it in, which is milliseconds a turn.
void StayOn(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(cpu), &one);
  (void)sched_setaffinity(0, sizeof one, &one);  // where it is forbidden, turns are slower
}

// News that a rank has not looked at yet.
struct Mailbox {
  std::vector<std::pair<std::vector<int>, std::string>> losses;
  std::vector<runtime::GroupFailure> failures;
};

}  // namespace

struct SimCluster::State {
  explicit State(const SimClusterOptions& the_options) : options(the_options), network(the_options.network) {}

  SimClusterOptions options;
  comm::SimNetwork network;
  std::vector<std::unique_ptr<runtime::Segment>> segments;  // by node
  std::vector<Mailbox> mail;
  std::map<std::string, std::string, std::less<>> store;
  std::vector<std::unique_ptr<runtime::Runtime>> runtimes;
  std::vector<std::unique_ptr<comm::Communicator>> worlds;
  // The baton: a rank runs between acquiring and releasing its turn. Slot `ranks` is the cluster's own.
  std::vector<std::unique_ptr<Turn>> turns;
  std::vector<int> runnable;
  bool running = false;

  int RanksPerNode() const { return (options.ranks + options.nodes - 1) / options.nodes; }
  int NodeOf(int rank) const { return rank / RanksPerNode(); }

  void Take(int slot) {
    if (turns[static_cast<size_t>(slot)]->Take(Deadline::After(options.deadline))) return;
    std::fprintf(stderr, "sim_cluster: hang: seed %llu, slot %d got no turn for %lld s\n",
                 static_cast<unsigned long long>(options.network.seed), slot,
                 static_cast<long long>(options.deadline.count()));
    std::abort();
  }
  // Called by the rank that runs: another one goes on.
  void Yield(int rank) {
    if (!running) return;
    network.Tick();
    const int next = runnable[network.Draw(runnable.size())];
    if (next == rank) return;
    turns[static_cast<size_t>(next)]->Give();
    Take(rank);
  }
  void Leave(int rank) {
    std::erase(runnable, rank);
    const int next = runnable.empty() ? options.ranks : runnable[network.Draw(runnable.size())];
    turns[static_cast<size_t>(next)]->Give();
  }
  void Tell(const runtime::GroupFailure& failure, int except) {
    for (int rank = 0; rank < options.ranks; ++rank) {
      if (rank != except && failure.members.contains(rank)) mail[static_cast<size_t>(rank)].failures.push_back(failure);
    }
  }
};

namespace {

// Stands in for the agent: one process holds all of it.
class SimBootstrap : public runtime::Bootstrap {
 public:
  SimBootstrap(SimCluster::State* state, int rank) : state_(state), rank_(rank) {}

  absl::StatusOr<Joined> Join(Deadline) override {
    const int per_node = state_->RanksPerNode();
    Joined joined;
    runtime::Identity& identity = joined.identity;
    identity.job_id = "sim";
    identity.rank = rank_;
    identity.world_size = state_->options.ranks;
    identity.node = state_->NodeOf(rank_);
    identity.local_rank = rank_ % per_node;
    for (int first = 0; first < state_->options.ranks; first += per_node) {
      runtime::NodeInfo node;
      node.index = first / per_node;
      node.name = "node" + std::to_string(node.index);
      node.first_rank = first;
      node.rank_count = std::min(per_node, state_->options.ranks - first);
      identity.nodes.push_back(node);
    }
    identity.local_world_size = identity.nodes[static_cast<size_t>(identity.node)].rank_count;
    const int fd = fcntl(state_->segments[static_cast<size_t>(identity.node)]->fd(), F_DUPFD_CLOEXEC, 0);
    auto segment = runtime::Segment::Attach(fd, identity.local_rank);
    if (!segment.ok()) return segment.status();
    joined.segment = *std::move(segment);
    return joined;
  }

  absl::Status Put(std::string_view key, std::string_view value, Deadline) override {
    state_->store.emplace(std::string(key), std::string(value));
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(std::string_view key, Deadline) override {
    const auto found = state_->store.find(key);
    if (found == state_->store.end()) return absl::NotFoundError("nobody has put " + std::string(key));
    return found->second;
  }

  bool Poll(runtime::BootstrapListener& listener) override {
    Mailbox mail = std::exchange(state_->mail[static_cast<size_t>(rank_)], Mailbox());
    for (const auto& [ranks, text] : mail.losses) listener.OnRanksLost(ranks, text);
    for (const runtime::GroupFailure& failure : mail.failures) listener.OnGroupFailure(failure);
    return !mail.losses.empty() || !mail.failures.empty();
  }

  void ReportStall(uint64_t group, uint64_t epoch, uint64_t sequence, const runtime::RankSet& members,
                   bool expired) override {
    std::vector<runtime::CallView> views;
    for (const int rank : members.ranks) {
      const int node = state_->NodeOf(rank);
      const auto box = state_->segments[static_cast<size_t>(node)]->black_box_of(rank % state_->RanksPerNode());
      views.push_back(runtime::InspectCall(box, rank, "node" + std::to_string(node), group,
                                           static_cast<uint32_t>(epoch), sequence));
    }
    const runtime::CallVerdict verdict = runtime::CompareCalls(group, sequence, views);
    runtime::GroupFailure failure;
    if (verdict.kind == runtime::CallVerdict::Kind::kMismatch) {
      failure.status = absl::FailedPreconditionError(verdict.text);
    } else if (verdict.kind == runtime::CallVerdict::Kind::kAbsent && expired) {
      failure.status = absl::DeadlineExceededError(verdict.text);
      failure.sequence = sequence;
    } else {
      return;
    }
    failure.group = group;
    failure.epoch = epoch;
    failure.members = members;
    failure.from_rank = rank_;
    state_->Tell(failure, -1);
  }
  void ReportGroupFailure(const runtime::GroupFailure& failure) override { state_->Tell(failure, rank_); }
  void Goodbye() override {}

 private:
  SimCluster::State* const state_;
  const int rank_;
};

void Require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "sim_cluster: %s\n", what.c_str());
  std::abort();
}

}  // namespace

SimCluster::SimCluster(const SimClusterOptions& options) : state_(std::make_unique<State>(options)) {
  State* state = state_.get();
  state->mail.resize(static_cast<size_t>(options.ranks));
  for (int first = 0; first < options.ranks; first += state->RanksPerNode()) {
    runtime::Segment::Options segment;
    segment.local_ranks = std::min(state->RanksPerNode(), options.ranks - first);
    segment.job_id = "sim";
    auto made = runtime::Segment::Create(segment);
    Require(made.ok(), std::string(made.status().message()));
    state->segments.push_back(*std::move(made));
  }
  for (int rank = 0; rank <= options.ranks; ++rank) {
    state->turns.push_back(std::make_unique<Turn>());
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    runtime::RuntimeOptions runtime_options;
    runtime_options.bootstrap = std::make_unique<SimBootstrap>(state, rank);
    auto runtime = runtime::Runtime::Init(std::move(runtime_options));
    Require(runtime.ok(), std::string(runtime.status().message()));
    {
      runtime::EngineLock lock((*runtime)->engine());
      comm::TransportSet::Of(**runtime).Add(state->network.MakeTransport(rank, [state, rank] { state->Yield(rank); }));
    }
    auto world = comm::Communicator::World(**runtime);
    Require(world.ok(), std::string(world.status().message()));
    state->runtimes.push_back(*std::move(runtime));
    state->worlds.push_back(*std::move(world));
  }
}

SimCluster::~SimCluster() {
  state_->worlds.clear();
  state_->runtimes.clear();
}

void SimCluster::Run(const std::function<void(SimRank&)>& program) {
  State* state = state_.get();
  const int ranks = state->options.ranks;
  state->runnable.clear();
  for (int rank = 0; rank < ranks; ++rank) state->runnable.push_back(rank);
  state->running = true;
  const int cpu = std::max(0, sched_getcpu());
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([this, state, rank, cpu, &program] {
      StayOn(cpu);
      state->Take(rank);
      SimRank self{rank, state->runtimes[static_cast<size_t>(rank)].get(),
                   state->worlds[static_cast<size_t>(rank)].get(), this};
      program(self);
      state->Leave(rank);
    });
  }
  state->turns[state->network.Draw(static_cast<uint64_t>(ranks))]->Give();
  state->Take(ranks);
  threads.clear();
  state->running = false;
}

void SimRank::WaitUntil(const std::function<bool()>& done) {
  runtime->engine().DriveUntil([&done] { return done(); }, Deadline::After(std::chrono::seconds(60)));
}

void SimRank::Poll(int times) {
  runtime::EngineLock lock(runtime->engine());
  for (int i = 0; i < times; ++i) runtime->engine().Poll();
}

void SimRank::Die(const std::string& text) {
  SimCluster::State* state = cluster->state_.get();
  for (size_t other = 0; other < state->mail.size(); ++other) {
    if (static_cast<int>(other) != rank) state->mail[other].losses.push_back({{rank}, text});
  }
  state->worlds[static_cast<size_t>(rank)].reset();
  world = nullptr;
}

}  // namespace cohort::testing
