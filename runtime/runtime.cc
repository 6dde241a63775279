#include "cohort/runtime/runtime.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "cohort/runtime/base/check.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/bootstrap/taped.h"
#include "cohort/runtime/env.h"
#include "cohort/runtime/preemption.h"
#include "cohort/runtime/ranges.h"
#include "cohort/runtime/tape/tape.h"

namespace cohort::runtime {
namespace {

// Failures of groups that nobody here knew yet are kept for communicators that are about to be made.
constexpr size_t kFailuresKept = 64;
constexpr std::chrono::milliseconds kAgentReturns{2};

// How a process joins whose program names no bootstrap. A world of one in place of each rank of a job would compute
// something, and something wrong: so only who is alone by all signs becomes one.
absl::StatusOr<std::unique_ptr<Bootstrap>> BootstrapFor(const Environment& environment) {
  if (!environment.agent.empty()) {
    if (!environment.local_rank.has_value()) {
      return absl::FailedPreconditionError(
          "COHORT_AGENT is set but COHORT_LOCAL_RANK is not; dlaunch sets both, so something on the way to this "
          "program has removed one");
    }
    return BootstrapFromAgent(environment.agent, *environment.local_rank);
  }
  if (!environment.job_id.empty()) {
    return absl::FailedPreconditionError(
        "COHORT_JOB_ID is set but COHORT_AGENT is not: something between dlaunch and this program has removed it. "
        "Pass it on to take part in the job, or unset COHORT_JOB_ID too to run alone");
  }
  if (!environment.other_launcher.empty() && !environment.allow_single) {
    return absl::FailedPreconditionError(
        environment.other_launcher +
        " says that another launcher started this as one of several processes; each would run alone, as a world of "
        "one. Start the program with dlaunch instead, or join through that launcher's key-value store "
        "(RuntimeOptions::bootstrap = BootstrapFromStore(...)); where each is meant to run alone, set "
        "COHORT_ALLOW_SINGLE=1");
  }
  return BootstrapWorldOfOne();
}

// The same for every bootstrap, so that a program that was tried alone meets no new limit elsewhere.
constexpr size_t kMaxKey = 1024;
constexpr size_t kMaxValue = 48 * 1024;

absl::Status CheckKey(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxKey) return absl::OkStatus();
  return absl::InvalidArgumentError("keys of the job's key-value store have 1 to 1024 bytes, not " +
                                    std::to_string(key.size()));
}

}  // namespace

// The runtime's own ear: remembers what happened, then tells the listeners.
struct Runtime::Rep final : BootstrapListener, ProgressSource {
  // ProgressSource: news are looked at whenever anybody drives, but keep nobody awake.
  bool Poll() override { return bootstrap->Poll(*this); }
  bool Active() const override { return false; }
  int Arm(bool* ready) override {
    if (bootstrap->Look()) *ready = true;
    return -1;
  }

  void OnRanksLost(const std::vector<int>& ranks, const std::string& text) override {
    {
      MutexLock lock(mutex);
      for (int rank : ranks) {
        if (rank < 0 || rank >= identity.world_size) continue;
        absl::Status& status = lost[static_cast<size_t>(rank)];
        if (status.ok()) status = absl::UnavailableError(text);
      }
      latest_loss = absl::UnavailableError(text);
    }
    preemption.OnLoss();
    preemption.OnSetback();
    ForEachListener([&](MembershipListener* listener) { listener->OnRanksLost(ranks, text); });
  }

  void OnGroupFailure(const GroupFailure& failure) override {
    if (failure.sequence == 0) failures.push_back(failure);
    preemption.OnSetback();
    if (failures.size() > kFailuresKept) failures.pop_front();
    ForEachListener([&](MembershipListener* listener) { listener->OnGroupFailure(failure); });
  }

  void OnPreemptionNotice(int signal) override { preemption.OnNotice(signal, *bootstrap); }
  void OnStopStep(std::optional<uint64_t> step) override { preemption.OnStopStep(step); }

  absl::Status LatestLoss() {
    MutexLock lock(mutex);
    return latest_loss;
  }

  // A listener may add or remove listeners.
  template <typename Function>
  void ForEachListener(Function function) {
    ++telling;
    for (size_t i = 0; i < listeners.size(); ++i) {
      if (listeners[i] != nullptr) function(listeners[i]);
    }
    if (--telling == 0) std::erase(listeners, nullptr);
  }

  // A child that was forked after Init has its parent's connections, not its own.
  absl::Status CheckProcess() const {
    if (!forks.InChild()) return absl::OkStatus();
    if (identity.world_size == 1 && !bootstrap->HasEpochs()) return absl::OkStatus();  // its store is its own memory
    return absl::FailedPreconditionError(
        "this process was forked from rank " + std::to_string(identity.rank) +
        ", whose connections it cannot use: use the store in the parent, or fork before Runtime::Init");
  }

  Identity identity;
  std::unique_ptr<Segment> segment;  // the others refer to it
  std::unique_ptr<Bootstrap> bootstrap;
  std::unique_ptr<Engine> engine;
  std::atomic<bool> finalized{false};  // other threads may be in Put or Get
  Ways ways;
  const ForkWatch forks;

  // With engine ownership.
  std::vector<MembershipListener*> listeners;
  int telling = 0;
  std::deque<GroupFailure> failures;

  Preemption preemption;

  Mutex mutex;
  std::vector<absl::Status> lost COHORT_GUARDED_BY(mutex);  // by world rank
  absl::Status latest_loss COHORT_GUARDED_BY(mutex);
  absl::Status unreported COHORT_GUARDED_BY(mutex);
};

Checks ChecksOf(const Runtime& runtime) { return runtime.rep_->ways.checks; }

Runtime::Runtime() : rep_(std::make_unique<Rep>()) {}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Init(RuntimeOptions options) {
  COHORT_ASSIGN_OR_RETURN(const Environment environment, Environment::Read());
  const auto timeout = environment.init_timeout.has_value() ? *environment.init_timeout : options.init_timeout;
  if (timeout <= std::chrono::nanoseconds(0)) {
    return absl::InvalidArgumentError("RuntimeOptions::init_timeout must be positive");
  }
  if (!environment.replay.empty()) {
    options.bootstrap = BootstrapFromTape(environment.replay);  // however the recorded rank has joined
  } else if (options.bootstrap == nullptr) {
    COHORT_ASSIGN_OR_RETURN(options.bootstrap, BootstrapFor(environment));
  }
  if (!environment.tape_folder.empty() && environment.replay.empty()) {
    options.bootstrap = BootstrapRecorded(std::move(options.bootstrap), {.folder = environment.tape_folder,
                                                                         .ranks = environment.tape_ranks,
                                                                         .keep_steps = environment.tape_last,
                                                                         .environment = environment.place_variables});
  }
  if (options.stays) options.bootstrap->MayStay();
  return Join(std::move(options.bootstrap), timeout,
              {.stays = options.stays,
               .progress_thread = options.progress_thread,
               .detect_deadlocks = environment.detect_deadlocks.value_or(options.detect_deadlocks),
               .checks = environment.checks.value_or(options.checks)});
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Join(std::unique_ptr<Bootstrap> bootstrap,
                                                       std::chrono::nanoseconds timeout, const Ways& ways) {
  COHORT_ASSIGN_OR_RETURN(Bootstrap::Joined joined, bootstrap->Join(Deadline::After(timeout)));
  std::unique_ptr<Runtime> runtime(new Runtime);
  Rep& rep = *runtime->rep_;
  rep.identity = std::move(joined.identity);
  rep.segment = std::move(joined.segment);
  rep.bootstrap = std::move(bootstrap);
  rep.ways = ways;
  {
    MutexLock lock(rep.mutex);
    rep.lost.resize(static_cast<size_t>(rep.identity.world_size));
  }
  // Simulated nodes share this host's CPUs.
  const int ranks_here = rep.identity.nodes_share_host ? rep.identity.world_size : rep.identity.local_world_size;
  rep.engine = std::make_unique<Engine>(rep.segment.get(), ranks_here);
  {
    EngineLock lock(*rep.engine);
    rep.engine->Add(&rep);
  }
  rep.engine->set_detects_deadlocks(ways.detect_deadlocks);
  COHORT_RETURN_IF_ERROR(AttachRanges(*rep.segment, &rep));
  if (ways.progress_thread) rep.engine->StartProgressThread();
  return runtime;
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::NextEpoch(std::unique_ptr<Runtime> ended,
                                                            std::chrono::nanoseconds timeout) {
  const Deadline deadline = Deadline::After(timeout);
  if (ended == nullptr) return absl::InvalidArgumentError("NextEpoch without a runtime: its argument is null");
  Rep& rep = *ended->rep_;
  if (rep.forks.InChild()) {
    return absl::FailedPreconditionError(
        "NextEpoch in a forked child: only the process that called Runtime::Init belongs to the job");
  }
  if (rep.finalized) return absl::FailedPreconditionError("NextEpoch after Finalize");
  // From here on a refusal ends `ended` in order, so that nobody waits for this rank.
  if (!rep.ways.stays) {
    return absl::FailedPreconditionError(
        "this process joined without RuntimeOptions::stays, so it is told to end after a failure");
  }
  if (!rep.bootstrap->HasEpochs()) {
    return absl::UnimplementedError("only jobs of dlaunch have further epochs; this process did not join one");
  }
  const Ways ways = rep.ways;
  ended->Leave(/*goodbye=*/false);
  ended->attachment_.reset();  // which still uses the store
  const std::unique_ptr<Bootstrap> bootstrap = std::move(rep.bootstrap);
  ended.reset();
  COHORT_RETURN_IF_ERROR(bootstrap->AwaitNextEpoch(deadline));
  while (true) {
    absl::StatusOr<std::unique_ptr<Runtime>> next = Join(bootstrap->NewOfThisKind(), deadline.left(), ways);
    // The agent closes a connection and its address before it listens again.
    if (!absl::IsUnavailable(next.status()) || deadline.passed()) return next;
    std::this_thread::sleep_for(kAgentReturns);
  }
}

Runtime::~Runtime() {
  if (rep_->forks.InChild()) {
    // The threads, the connections and what is written in the segment are the parent's: nothing to end here.
    LeaveToParent(new std::shared_ptr<void>(std::move(attachment_)));
    LeaveToParent(rep_.release());
    return;
  }
  Finalize().IgnoreError();
}

void Runtime::Leave(bool goodbye) {
  Rep& rep = *rep_;
  rep.engine->StopProgressThread();
  DetachRanges(&rep);
  EngineLock lock(*rep.engine);
  rep.bootstrap->Look();
  rep.engine->Poll();  // news that came after the last wait
  rep.engine->Remove(&rep);
  rep.finalized = true;
  rep.ForEachListener([](MembershipListener* listener) { listener->OnFinalize(); });
  if (goodbye) rep.bootstrap->Goodbye();
}

absl::Status Runtime::Finalize() {
  Rep& rep = *rep_;
  if (rep.forks.InChild()) return absl::OkStatus();
  if (!rep.finalized && rep.engine != nullptr) Leave(/*goodbye=*/true);
  MutexLock lock(rep.mutex);
  return std::exchange(rep.unreported, absl::OkStatus());
}

const ForkWatch& Runtime::forks() const { return rep_->forks; }
bool Runtime::finalized() const { return rep_->finalized; }
const Identity& Runtime::identity() const { return rep_->identity; }
Engine& Runtime::engine() { return *rep_->engine; }
Segment& Runtime::segment() { return *rep_->segment; }

int Runtime::node_of(int rank) const {
  COHORT_CHECK(rank >= 0 && rank < world_size());
  const std::vector<NodeInfo>& nodes = identity().nodes;
  const auto after = std::upper_bound(nodes.begin(), nodes.end(), rank,
                                      [](int value, const NodeInfo& node) { return value < node.first_rank; });
  return static_cast<int>(after - nodes.begin()) - 1;
}

int Runtime::local_rank_of(int rank) const {
  return rank - identity().nodes[static_cast<size_t>(node_of(rank))].first_rank;
}

absl::Status Runtime::Put(std::string_view key, std::string_view value, Deadline deadline) {
  COHORT_RETURN_IF_ERROR(rep_->CheckProcess());
  if (finalized()) return absl::FailedPreconditionError("Put after Finalize");
  COHORT_RETURN_IF_ERROR(CheckKey(key));
  if (value.size() > kMaxValue) {
    return absl::InvalidArgumentError("the value of key " + std::string(key) + " has " + std::to_string(value.size()) +
                                      " bytes; at most 49152 are allowed: move larger data by a collective");
  }
  return rep_->bootstrap->Put(key, value, deadline);
}

absl::StatusOr<std::string> Runtime::Get(std::string_view key, Deadline deadline) {
  COHORT_RETURN_IF_ERROR(rep_->CheckProcess());
  if (finalized()) return absl::FailedPreconditionError("Get after Finalize");
  COHORT_RETURN_IF_ERROR(CheckKey(key));
  return rep_->bootstrap->Get(key, deadline);
}

absl::StatusOr<VariableResult> Runtime::CallVariable(const VariableCall& call, Deadline deadline) {
  COHORT_RETURN_IF_ERROR(rep_->CheckProcess());
  if (finalized()) return absl::FailedPreconditionError("a call on the job's variables after Finalize");
  if (call.kind != VariableCall::Kind::kCount) COHORT_RETURN_IF_ERROR(CheckKey(call.key));
  const size_t bytes = call.key.size() + call.value.size() + call.expected.size();
  if (bytes > kMaxValue) {
    return absl::InvalidArgumentError("a call on variable " + call.key + " has " + std::to_string(bytes) +
                                      " bytes; at most 49152 are allowed");
  }
  return rep_->bootstrap->CallVariable(call, deadline);
}

absl::Status Runtime::rank_status(int rank) const {
  if (rank < 0 || rank >= world_size()) {
    return absl::InvalidArgumentError("rank_status of rank " + std::to_string(rank) + "; the job's ranks are 0 to " +
                                      std::to_string(world_size() - 1));
  }
  MutexLock lock(rep_->mutex);
  return rep_->lost[static_cast<size_t>(rank)];
}

void Runtime::AddListener(MembershipListener* listener) {
  EngineLock lock(*rep_->engine);
  rep_->listeners.push_back(listener);
  const std::deque<GroupFailure> earlier = rep_->failures;
  for (const GroupFailure& failure : earlier) listener->OnGroupFailure(failure);
}

void Runtime::RemoveListener(MembershipListener* listener) {
  EngineLock lock(*rep_->engine);
  auto& listeners = rep_->listeners;
  const auto found = std::find(listeners.begin(), listeners.end(), listener);
  if (found == listeners.end()) return;
  if (rep_->telling == 0) {
    listeners.erase(found);
  } else {
    *found = nullptr;
  }
}

void Runtime::ReportStall(uint64_t group, uint64_t sequence, const RankSet& members, bool expired) {
  EngineLock lock(*rep_->engine);
  rep_->bootstrap->ReportStall(group, identity().epoch, sequence, members, expired);
}

void Runtime::ReportWait(uint64_t group, const RankSet& members) {
  EngineLock lock(*rep_->engine);
  rep_->bootstrap->ReportWait(group, identity().epoch, members);
}

void Runtime::ReportGroupFailure(const GroupFailure& failure) {
  EngineLock lock(*rep_->engine);
  rep_->preemption.OnSetback();  // the news do not come back to who brings them
  rep_->bootstrap->ReportGroupFailure(failure);
}

bool Runtime::AskToBeKilled(const std::string& why) {
  EngineLock lock(*rep_->engine);
  return rep_->bootstrap->AskToBeKilled(why);
}

absl::StatusOr<bool> Runtime::OnPreemption(uint64_t step, std::chrono::nanoseconds timeout) {
  Rep& rep = *rep_;
  COHORT_RETURN_IF_ERROR(rep.CheckProcess());
  if (rep.finalized) return absl::FailedPreconditionError("OnPreemption after Finalize");
  const Tape* const tape = Tape::Of(*rep.segment);
  if (tape != nullptr && tape->player() != nullptr) return tape->player()->AskStop(step);
  absl::StatusOr<bool> stop = rep.preemption.Ask(
      step, timeout, *rep.engine, *rep.bootstrap, [&rep] { rep.Poll(); }, [&rep] { return rep.LatestLoss(); });
  if (tape != nullptr && stop.ok()) tape->writer()->Step(step, *stop);
  if (stop.ok() && !*stop) MarkStep(step);
  return stop;
}

void Runtime::NoteUnreportedFailure(const absl::Status& status) {
  MutexLock lock(rep_->mutex);
  if (rep_->unreported.ok()) rep_->unreported = status;
}

void Runtime::NoteReportedFailure(const absl::Status& status) {
  MutexLock lock(rep_->mutex);
  if (rep_->unreported == status) rep_->unreported = absl::OkStatus();
}

}  // namespace cohort::runtime
