#include "cohort/comm/group/group.h"

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "cohort/comm/check/input_check.h"
#include "cohort/comm/group/batch_state.h"
#include "cohort/comm/group/local_call.h"
#include "cohort/comm/group/make_call.h"
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

// The Work of a call of a group that has failed.
runtime::Work EndedBy(runtime::Runtime& runtime, const absl::Status& status) {
  runtime.NoteReportedFailure(status);
  return runtime::Work::Finished(status);
}

// Ends a group in which an exception, most likely for want of memory, has left a call that other members count on.
// Within the handler of the exception.
void FailByException(Group& group) {
  std::string what = "something that is no std::exception";
  absl::StatusCode code = absl::StatusCode::kInternal;
  try {
    throw;
  } catch (const std::bad_alloc&) {
    what = "no memory";
    code = absl::StatusCode::kResourceExhausted;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  const std::string rank = std::to_string(group.runtime().rank());
  group.FailEverywhere(absl::Status(code, "rank " + rank + " could not go on with a call: " + what),
                       group.context().rank);
}

// The same, for the caller's Work.
runtime::Work EndByException(Group& group) {
  FailByException(group);
  return EndedBy(group.runtime(), group.status());
}

// Ends a call that is numbered, and its group, before anything of it is sent.
runtime::Work Refuse(Group& group, PreparedCall& call, const absl::Status& why) {
  runtime::BlackBoxWriter& black_box = group.runtime().segment().black_box();
  const uint64_t ticket = black_box.Start(call.record, &call.description);
  group.FailEverywhere(why, group.context().rank);
  black_box.Finish(ticket, runtime::CallState::kFailed);
  return EndedBy(group.runtime(), why);
}

// The group has a call under way.
void PollOrFail(Group& group, runtime::Engine& engine) {
  try {
    engine.PollWhileActive(&group);
  } catch (...) {
    FailByException(group);
  }
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
  context_.checks = ChecksOf(runtime);
  context_.drive = [this](const std::function<bool()>& done, runtime::Deadline deadline) {
    return Drive(done, deadline);
  };
  context_.fail = [this](const absl::Status& status, int blamed) { FailEverywhere(status, blamed); };
  runtime::EngineLock lock(runtime.engine());
  providers_.Open();
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

[[gnu::always_inline]] inline runtime::Work Group::Run(RememberedCall& call, const void* in, void* out) {
  recorder_.Number(call.request, call.beyond_sequence, &call.record);
  if (context_.checks.nan) [[unlikely]] {
    const absl::Status finite = CheckInput(context_, call.request, in, call.record);
    if (!finite.ok()) return Refuse(*this, call, finite);
  }
  try {
    call.provider->Start(call, in, out);
    call.ticket = black_box_.Start(call.record, &call.description);
    return call.provider->Run(call);
  } catch (...) {
    return EndByException(*this);
  }
}

[[gnu::always_inline]] inline runtime::Work Group::FindAndRun(const CallArguments& arguments,
                                                              const CallOptions& options, const CallShape* shape,
                                                              const runtime::EngineLock& lock) {
  RememberedCall* const known = memo_.Find(arguments, options, shape);
  if (known == nullptr || !status_.ok()) [[unlikely]]
    return MakeAndRun(arguments, options, shape, lock);
  if (known->record.tag != options.tag) {
    CallRecorder::Retag(options.tag, &known->record);
    known->beyond_sequence = runtime::HashBeyondSequence(known->record.signature);
  }
  return Run(*known, known->InOf(arguments), known->OutOf(arguments));
}

runtime::Work Group::Submit(const CallArguments& arguments, const CallOptions& options, const CallShape* shape) {
  if (InChild()) [[unlikely]]
    return runtime::Work::Finished(WhyNotInChild());
  runtime::Work work;
  bool pending = false;
  {
    runtime::EngineLock lock(engine_);
    work = FindAndRun(arguments, options, shape, lock);
    pending = !work.Done();
    if (pending) PollOrFail(*this, engine_);
  }
  if (pending) engine_.Kick();
  return work;
}

runtime::Work Group::MakeAndRun(const CallArguments& arguments, const CallOptions& options, const CallShape* shape,
                                const runtime::EngineLock& lock) {
  if (!status_.ok()) return EndedBy(runtime(), status_);
  absl::Status made = MakeCall(context_, providers_, recorder_, {arguments, options, shape}, &made_);
  if (!made.ok()) return runtime::Work::Finished(std::move(made));
  return RunMade(made_, lock);
}

runtime::Work Group::RunMade(std::unique_ptr<RememberedCall>& made, const runtime::EngineLock& lock) {
  if (made->provider == nullptr) {
    if (context_.checks.nan) [[unlikely]] {
      made->description = {};
      recorder_.Sign(made->request, made->service, &made->record);
      recorder_.Describe(made->request, &made->record);
      recorder_.Number(made->request, runtime::HashBeyondSequence(made->record.signature), &made->record);
      const absl::Status finite = CheckInput(context_, made->request, made->request.in, made->record);
      if (!finite.ok()) return Refuse(*this, *made, finite);
    }
    RunLocalCall(made->request);
    return runtime::Work::Finished(absl::OkStatus());
  }
  const InsideProvider inside(*this, lock);
  RememberedCall& call = memo_.Keep(made);
  return Run(call, call.request.in, call.request.out);
}

runtime::Work Group::SubmitBatch(std::span<const BatchedCall> calls) {
  if (calls.empty()) return runtime::Work::Finished(absl::OkStatus());
  if (InChild()) [[unlikely]]
    return runtime::Work::Finished(WhyNotInChild());
  runtime::Work work;
  {
    runtime::EngineLock lock(runtime().engine());
    if (!status_.ok()) return EndedBy(runtime(), status_);
    if (batches_ == nullptr) {
      batches_ = std::make_unique<StatePool<BatchState>>(&runtime().engine(), context_.source);
    }
    BatchState* const state = batches_->Take();
    if (absl::Status made = state->Make(calls, context_, {memo_, providers_, recorder_}); !made.ok()) {
      batches_->Discard(state);
      return runtime::Work::Finished(std::move(made));
    }
    work = runtime::Work::Adopt(state);
    {
      const InsideProvider inside(*this, lock);
      const uint64_t before = black_box_.latest();
      const auto run = [&](BatchedPart& part) {
        if (!status_.ok()) return EndedBy(runtime(), status_);  // an earlier call of the batch has failed
        try {
          return part.known ? FindAndRun(*part.arguments, *part.options, part.shape_or_null(), lock)
                            : RunMade(part.made, lock);
        } catch (...) {
          return EndByException(*this);  // earlier calls of the batch have begun
        }
      };
      state->Run(std::cref(run));  // without an allocation
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

bool Group::Poll() {
  try {
    return providers_.Poll();
  } catch (...) {
    FailByException(*this);
    return true;
  }
}

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
  if (InChild()) return WhyNotInChild();
  runtime::EngineLock lock(runtime().engine());
  if (!status_.ok()) return status_;
  if (buffer.memory != MemoryKind::kCuda) {
    return absl::InvalidArgumentError(
        "register device memory: the buffer is host memory, which needs none; see AllocateWindow");
  }
  if (buffer.count < 0 || SizeOf(buffer.dtype) == 0 || (buffer.data == nullptr && buffer.count > 0)) {
    return absl::InvalidArgumentError("register device memory: the buffer has no address, count or type");
  }
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
  try {
    FailHere(status);
    TellMembers(status, blamed);
  } catch (const std::bad_alloc&) {
    // Once more, all of it: the group is failed here, so no later call would end its works or tell the members.
    providers_.Fail(status);
    links_.TellEnd();
    TellMembers(status, blamed);
  }
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
