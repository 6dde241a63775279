#include "cohort/comm/group/group.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cohort/comm/group/batch_state.h"
#include "cohort/comm/group/local_call.h"
#include "cohort/comm/run/mismatch.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm {
namespace {

// True when all members are ranks of the caller's node.
bool OnOneNode(const runtime::Identity& identity, const std::vector<int>& members) {
  if (identity.nodes.empty()) return true;
  const runtime::NodeInfo& own = identity.nodes[static_cast<size_t>(identity.node)];
  return std::all_of(members.begin(), members.end(), [&own](int member) {
    return member >= own.first_rank && member < own.first_rank + own.rank_count;
  });
}

bool HasMember(const GroupContext& group, int world_rank) {
  return std::find(group.members.begin(), group.members.end(), world_rank) != group.members.end();
}

absl::Status Finalized() {
  return absl::FailedPreconditionError(
      "the runtime has been finalized: make all calls, and wait for them, before Runtime::Finalize");
}

}  // namespace

Group::Group(runtime::Runtime& runtime, std::vector<int> members, uint64_t id, std::string transports, Tuning tuning,
             Determinism determinism, std::vector<int> fails_with)
    : engine_(runtime.engine()),
      black_box_(runtime.segment().black_box()),
      links_(context_),
      providers_(context_, links_),
      recorder_(context_),
      forks_(runtime.forks()) {
  context_.id = id;
  context_.epoch = static_cast<uint32_t>(runtime.identity().epoch);
  context_.size = static_cast<int>(members.size());
  context_.rank = static_cast<int>(std::find(members.begin(), members.end(), runtime.rank()) - members.begin());
  context_.members = std::move(members);
  context_.fails_with = std::move(fails_with);
  context_.runtime = &runtime;
  if (OnOneNode(runtime.identity(), context_.members)) context_.source = this;
  context_.transports = std::move(transports);
  context_.tuning = std::move(tuning);
  context_.determinism = determinism == Determinism::kDefault ? Determinism::kFast : determinism;
  context_.drive = [this](const std::function<bool()>& done, runtime::Deadline deadline) {
    return Drive(done, deadline);
  };
  context_.fail = [this](const absl::Status& status, int blamed) { FailEverywhere(status, blamed); };
  runtime::EngineLock lock(runtime.engine());
  runtime.AddListener(this);
  for (const std::vector<int>* ranks : {&context_.members, &context_.fails_with}) {
    for (const int rank : *ranks) {
      if (const absl::Status lost = runtime.rank_status(rank); !lost.ok() && status_.ok()) status_ = lost;
    }
  }
  if (runtime.finalized() && status_.ok()) status_ = Finalized();
}

Group::Group(Group& parent, std::vector<int> members, uint64_t id, std::vector<int> fails_with)
    : Group(parent.runtime(), std::move(members), id, parent.context_.transports, parent.context_.tuning,
            parent.context_.determinism, std::move(fails_with)) {
  memo_.RunInline(parent.memo_.runs_inline());
}

Group::~Group() {
  runtime::EngineLock lock(runtime().engine());
  // News that came after the last call, which Finalize tells if no call did.
  if (status_.ok() && !InChild() && !runtime().finalized()) runtime().engine().Poll();
  runtime().RemoveListener(this);
  runtime().engine().Remove(this);
  absl::Status told;
  const bool others_wait = status_.ok() && !InChild() && context_.size > 1;
  if (const runtime::CallRecord* pending = others_wait ? providers_.Pending() : nullptr; pending != nullptr) {
    told = absl::CancelledError("rank " + std::to_string(runtime().rank()) +
                                " destroyed the communicator while it was in " + DescribePending(*pending));
  }
  // A callback of a work that is cancelled now may submit again.
  if (status_.ok()) status_ = absl::CancelledError("the communicator was destroyed");
  providers_.Clear();
  batches_.reset();
  links_.TellEnd();
  // After the links are gone: no member can then take what this rank's memory holds from here on.
  if (!told.ok()) TellMembers(told, context_.rank);
}

bool Group::Drive(const std::function<bool()>& done, runtime::Deadline deadline) {
  // Calls into this group meanwhile come from inside the engine.
  const runtime::EngineLock* const entry = std::exchange(entry_, nullptr);
  bool result = false;
  {
    std::optional<runtime::EngineRelease> release;
    if (entry != nullptr) release.emplace(*entry);
    result = runtime().engine().DriveUntil([&done] { return done(); }, deadline);
  }
  entry_ = entry;
  return result;
}

absl::Status Group::status() {
  if (InChild()) return WhyNotInChild();
  runtime::EngineLock lock(runtime().engine());
  return status_;
}

absl::Status Group::WhyNotInChild() const {
  return absl::FailedPreconditionError("this process was forked from rank " +
                                       std::to_string(context_.members[context_.rank]) +
                                       ", whose place among the ranks it cannot take: communicate in the parent, or "
                                       "fork before Runtime::Init");
}

runtime::Work Group::Submit(const CallArguments& arguments, const CallOptions& options) {
  if (InChild()) [[unlikely]]
    return runtime::Work::Finished(WhyNotInChild());
  runtime::Work work;
  bool pending = false;
  {
    runtime::EngineLock lock(engine_);
    RememberedCall* known = memo_.Find(arguments, options);
    const bool repeats = known != nullptr && status_.ok();
    work = repeats ? Repeat(*known, arguments, options) : SubmitNew(arguments, options, lock);
    pending = !work.Done();
    if (pending) engine_.PollWhileActive(this);
  }
  if (pending) engine_.Kick();
  return work;
}

inline runtime::Work Group::Repeat(RememberedCall& known, const CallArguments& arguments, const CallOptions& options) {
  if (known.record.tag != options.tag) {
    CallRecorder::Retag(options.tag, &known.record);
    known.beyond_sequence = runtime::HashBeyondSequence(known.record.signature);
  }
  recorder_.Number(known.request, known.beyond_sequence, &known.record);
  known.provider->PostAgain(known, known.InOf(arguments), known.OutOf(arguments));
  known.ticket = black_box_.Start(known.record, &known.description);
  return known.provider->LaunchAgain(known);
}

runtime::Work Group::SubmitNew(const CallArguments& arguments, const CallOptions& options,
                               const runtime::EngineLock& lock) {
  CollectiveRequest request;
  absl::Status valid = MakeRequest(arguments, context_.rank, context_.size, &request);
  if (valid.ok()) valid = ApplyOptions(options, context_.determinism, &request);
  if (!valid.ok()) return runtime::Work::Finished(std::move(valid));
  return SubmitValid(request, options, lock, &arguments);
}

runtime::Work Group::SubmitUnequal(const CallArguments& arguments, const BlockLayout& in_blocks,
                                   const BlockLayout& out_blocks, const CallOptions& options) {
  if (InChild()) [[unlikely]]
    return runtime::Work::Finished(WhyNotInChild());
  runtime::Work work;
  {
    runtime::EngineLock lock(runtime().engine());  // for table_
    CollectiveRequest request;
    absl::Status valid =
        MakeUnequalRequest(arguments, in_blocks, out_blocks, context_.rank, context_.size, &table_, &request);
    if (valid.ok()) valid = ApplyOptions(options, context_.determinism, &request);
    if (!valid.ok()) return runtime::Work::Finished(std::move(valid));
    work = SubmitValid(request, options, lock);
  }
  if (!work.Done()) runtime().engine().Kick();
  return work;
}

runtime::Work Group::SubmitValid(const CollectiveRequest& request, const CallOptions& options,
                                 const runtime::EngineLock& lock, const CallArguments* arguments) {
  if (!status_.ok()) {
    runtime().NoteReportedFailure(status_);
    return runtime::Work::Finished(status_);
  }
  if (ServedAlone(context_, request)) {
    if (absl::Status named = CheckNameAlone(context_, request.kind, options); !named.ok()) {
      return runtime::Work::Finished(std::move(named));
    }
    RunLocalCall(request);
    return runtime::Work::Finished(absl::OkStatus());
  }
  const InsideProvider inside(*this, lock);
  const absl::StatusOr<Provider*> provider = providers_.For(request);
  if (!provider.ok()) return runtime::Work::Finished(provider.status());
  const absl::StatusOr<ServicePlan> service = (*provider)->Choose(request, options.algorithm);
  if (!service.ok()) return runtime::Work::Finished(service.status());
  AcceptedCall& call = (*provider)->NextCall();
  call.like = 0;
  call.plan = nullptr;
  call.begun = false;
  call.request = request;
  if (request.blocks != nullptr) [[unlikely]] {
    if (call.blocks.use_count() != 1) call.blocks = std::make_shared<BlockTable>();  // none, or an earlier call's
    *call.blocks = *request.blocks;
    call.request.blocks = call.blocks.get();
  }
  call.timeout = options.timeout;
  call.stream = options.stream;
  call.service = *service;
  recorder_.Sign(request, *service, &call.record);
  (*provider)->Post();
  recorder_.Describe(request, &call.record);
  if (arguments != nullptr) memo_.Remember(*arguments, options, call, *provider, context_.rank, context_.size);
  call.ticket = black_box_.Start(call.record);
  return (*provider)->Launch(call);
}

runtime::Work Group::SubmitBatch(std::span<const BatchedCall> calls) {
  if (calls.empty()) return runtime::Work::Finished(absl::OkStatus());
  if (InChild()) [[unlikely]]
    return runtime::Work::Finished(WhyNotInChild());
  runtime::Work work;
  {
    runtime::EngineLock lock(runtime().engine());
    if (!status_.ok()) {
      runtime().NoteReportedFailure(status_);
      return runtime::Work::Finished(status_);
    }
    if (batches_ == nullptr) {
      batches_ = std::make_unique<StatePool<BatchState>>(&runtime().engine(), context_.source);
    }
    BatchState* const state = batches_->Take();
    state->Begin(calls.size());
    if (absl::Status valid = state->Check(calls, context_, providers_); !valid.ok()) {
      batches_->Discard(state);
      return runtime::Work::Finished(std::move(valid));
    }
    work = runtime::Work::Adopt(state);
    {
      const InsideProvider inside(*this, lock);
      const uint64_t before = black_box_.latest();
      state->Start(calls, context_, [&](const CollectiveRequest& request, const CallOptions& options) {
        return SubmitValid(request, options, lock);
      });
      state->SetTickets(before + 1, black_box_.latest());
    }
    state->Close();
  }
  if (!work.Done()) runtime().engine().Kick();
  return work;
}

void Group::UseTuning(const Tuning& tuning) {
  runtime::EngineLock lock(runtime().engine());
  context_.tuning = tuning;
  memo_.Clear();
  providers_.OnTuning();
}

void Group::ExpectWindows() {
  runtime::EngineLock lock(runtime().engine());
  if (std::exchange(context_.windows, true)) return;
  memo_.Clear();
  providers_.OnTuning();
}

std::string Group::Explain(CollectiveRequest request) {
  if (InChild()) return std::string(WhyNotInChild().message());
  runtime::EngineLock lock(runtime().engine());
  if (context_.size == 1 && request.memory == MemoryKind::kHost) return "local copy: the group has one rank";
  const absl::StatusOr<Provider*> provider = providers_.For(request);
  if (!provider.ok()) return std::string(provider.status().message());
  request.determinism = context_.determinism;
  return "provider " + std::string((*provider)->name()) + ": " + (*provider)->Explain(request);
}

bool Group::Poll() { return providers_.Poll(); }

bool Group::Active() const { return inside_provider_ > 0 || providers_.Active(); }

int Group::Arm(bool*) {
  providers_.Arm();
  return -1;
}

void Group::SetShrunkFrom(const GroupContext& parent) {
  context_.shrunk_from = parent.id;
  for (int i = 0; i < parent.size; ++i) {
    if (!HasMember(context_, parent.members[i])) context_.lost.push_back(i);
  }
}

absl::Status Group::Register(const Buffer& buffer, runtime::Deadline deadline) {
  if (buffer.memory != MemoryKind::kCuda) {
    return absl::InvalidArgumentError(
        "register device memory: the buffer is host memory, which needs none; see AllocateWindow");
  }
  if (InChild()) return WhyNotInChild();
  if (buffer.count < 0 || SizeOf(buffer.dtype) == 0 || (buffer.data == nullptr && buffer.count > 0)) {
    return absl::InvalidArgumentError("register device memory: the buffer has no address, count or type");
  }
  runtime::EngineLock lock(runtime().engine());
  if (!status_.ok()) return status_;
  CollectiveRequest request;
  request.memory = buffer.memory;
  request.device = buffer.device;
  const InsideProvider inside(*this, lock);
  const absl::StatusOr<Provider*> provider = providers_.For(request);
  return provider.ok() ? (*provider)->Register(buffer, deadline) : provider.status();
}

void Group::OnSplit(int color, int key, uint64_t child) {
  runtime::EngineLock lock(runtime().engine());
  const InsideProvider inside(*this, lock);
  providers_.OnSplit(color, key, child);
}

void Group::FailHere(const absl::Status& status, bool report) {
  if (!status_.ok()) return;
  status_ = status;
  if (report && providers_.Pending() == nullptr) runtime().NoteUnreportedFailure(status);
  runtime().engine().PollWhileActive(this);  // a provider may have something to stop
  providers_.Fail(status);
  links_.TellEnd();
}

void Group::FailEverywhere(const absl::Status& status, int blamed) {
  runtime::EngineLock lock(runtime().engine());
  if (!status_.ok()) return;
  FailHere(status);
  TellMembers(status, blamed);
}

void Group::TellMembers(const absl::Status& status, int blamed) {
  runtime::GroupFailure failure;
  failure.group = context_.id;
  failure.epoch = context_.epoch;
  failure.members.ranks = context_.members;
  failure.status = status;
  failure.blamed_rank = blamed < 0 ? -1 : context_.members[blamed];
  failure.from_rank = runtime().rank();
  runtime().ReportGroupFailure(failure);
}

void Group::OnRanksLost(const std::vector<int>& ranks, const std::string& text) {
  const auto concerns = [this](int rank) {
    return HasMember(context_, rank) ||
           std::binary_search(context_.fails_with.begin(), context_.fails_with.end(), rank);
  };
  if (!status_.ok() || std::none_of(ranks.begin(), ranks.end(), concerns)) return;
  const runtime::CallRecord* pending = providers_.Pending();
  FailHere(
      absl::UnavailableError(pending == nullptr ? text : text + " while others were in " + DescribePending(*pending)));
}

void Group::OnGroupFailure(const runtime::GroupFailure& failure) {
  if (failure.group != context_.id || failure.epoch != context_.epoch || failure.status.ok()) return;
  if (absl::IsCancelled(failure.status)) {
    // A member destroyed its communicator amid a call. To a rank without one it is news for its next call only.
    FailHere(absl::AbortedError(failure.status.message()), /*report=*/false);
  } else if (failure.sequence == 0) {
    FailHere(failure.status);
  } else if (providers_.WaitsIn(failure.sequence)) {
    const auto blamed = std::find(context_.members.begin(), context_.members.end(), failure.blamed_rank);
    FailEverywhere(failure.status,
                   blamed == context_.members.end() ? -1 : static_cast<int>(blamed - context_.members.begin()));
  }
}

void Group::OnFinalize() {
  if (!status_.ok()) return;
  status_ = Finalized();
  providers_.FailActive(status_);
}

}  // namespace cohort::comm
