#include "cohort/comm/group/group.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "cohort/comm/group/batch_state.h"
#include "cohort/comm/group/local_call.h"
#include "cohort/comm/run/mismatch.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm {
namespace {

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15u;
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 33);
}

// Counts that all members know are compared as one hash; those that only a pair knows, message by message.
uint64_t SignedCount(const CollectiveRequest& request) {
  if (request.blocks == nullptr) [[likely]]
    return static_cast<uint64_t>(request.count);
  if (request.kind != CollectiveKind::kAllGatherV && request.kind != CollectiveKind::kReduceScatterV) return 0;
  uint64_t hash = 0;
  const BlockTable& blocks = *request.blocks;
  for (const int64_t count : blocks.in_counts.size() > 1 ? blocks.in_counts : blocks.out_counts) {
    hash = Mix(hash, static_cast<uint64_t>(count));
  }
  return hash;
}

// What the larger buffer holds, in elements.
uint64_t MovedElements(const CollectiveRequest& request, bool is_root, int size) {
  if (request.blocks == nullptr) [[likely]] {
    const BufferBlocks blocks = BlocksOf(request.kind, is_root, size);
    return static_cast<uint64_t>(request.count) * static_cast<uint64_t>(std::max(blocks.in, blocks.out));
  }
  const auto total = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  };
  return std::max(total(request.blocks->in_counts), total(request.blocks->out_counts));
}

// True when all members are ranks of the caller's node.
bool OnOneNode(const runtime::Identity& identity, const std::vector<int>& members) {
  if (identity.nodes.empty()) return true;
  const runtime::NodeInfo& own = identity.nodes[static_cast<size_t>(identity.node)];
  return std::all_of(members.begin(), members.end(), [&own](int member) {
    return member >= own.first_rank && member < own.first_rank + own.rank_count;
  });
}

void FillUserOp(const UserReduceOp& op, runtime::CallRecord* record) {
  const size_t length = std::min(op.name.size(), sizeof record->user_op - 1);
  std::memcpy(record->user_op, op.name.data(), length);
  record->user_op[length] = '\0';
  uint64_t hash = op.commutative ? 1 : 2;
  for (const char c : op.name) hash = Mix(hash, static_cast<unsigned char>(c));
  record->signature.tuning ^= hash;
}

absl::Status Finalized() {
  return absl::FailedPreconditionError(
      "the runtime has been finalized: make all calls, and wait for them, before Runtime::Finalize");
}

}  // namespace

uint64_t Group::MakeId(uint64_t parent, uint64_t tag, uint64_t sequence, const std::vector<int>& members,
                       uint64_t epoch) {
  uint64_t hash = Mix(Mix(Mix(Mix(0, parent), tag), sequence), epoch);
  for (const int member : members) hash = Mix(hash, static_cast<uint64_t>(member));
  return hash == 0 ? 1 : hash;
}

Group::Group(runtime::Runtime& runtime, std::vector<int> members, uint64_t id, std::string transports, Tuning tuning,
             Determinism determinism)
    : forks_(runtime.forks_at_init()), forks_now_(runtime::Forks()) {
  context_.id = id;
  context_.epoch = static_cast<uint32_t>(runtime.identity().epoch);
  context_.size = static_cast<int>(members.size());
  context_.rank = static_cast<int>(std::find(members.begin(), members.end(), runtime.rank()) - members.begin());
  context_.members = std::move(members);
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
  for (const int member : context_.members) {
    if (const absl::Status lost = runtime.rank_status(member); !lost.ok() && status_.ok()) status_ = lost;
  }
  if (runtime.finalized() && status_.ok()) status_ = Finalized();
}

Group::~Group() {
  runtime::EngineLock lock(runtime().engine());
  // News that came after the last call, which Finalize tells if no call did.
  if (status_.ok() && !InChild() && !runtime().finalized()) runtime().engine().Poll();
  runtime().RemoveListener(this);
  runtime().engine().Remove(this);
  absl::Status told;
  if (const runtime::CallRecord* pending = status_.ok() && !InChild() ? Pending() : nullptr; pending != nullptr) {
    told = absl::CancelledError("rank " + std::to_string(runtime().rank()) +
                                " destroyed the communicator while it was in " + DescribePending(*pending));
  }
  // A callback of a work that is cancelled now may submit again.
  if (status_.ok()) status_ = absl::CancelledError("the communicator was destroyed");
  for (auto& provider : providers_) provider.reset();
  batches_.reset();
  TellTransportsOfEnd();
  // After the links are gone: no member can then take what this rank's memory holds from here on.
  if (!told.ok()) TellMembers(told, context_.rank);
}

bool Group::Drive(const std::function<bool()>& done, runtime::Deadline deadline) {
  // What calls into this group meanwhile comes from inside the engine.
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

absl::StatusOr<std::unique_ptr<Link>> Group::MakeLink(int peer, uint16_t lane) {
  const int world_rank = context_.members[peer];
  absl::StatusOr<Transport*> transport = TransportSet::Of(runtime()).For(world_rank, context_.transports);
  if (!transport.ok()) return transport.status();
  LinkSpec spec;
  spec.group = context_.id;
  spec.epoch = context_.epoch;
  spec.group_rank = context_.rank;
  spec.peer = peer;
  spec.peer_world_rank = world_rank;
  spec.lane = lane;
  return (*transport)->Connect(spec);
}

absl::StatusOr<std::unique_ptr<Fanout>> Group::MakeFanout(uint16_t lane) {
  // Only where one transport reaches everybody, which all members see alike.
  Transport* common = nullptr;
  for (int i = 0; i < context_.size; ++i) {
    if (i == context_.rank) continue;
    absl::StatusOr<Transport*> transport = TransportSet::Of(runtime()).For(context_.members[i], context_.transports);
    if (!transport.ok()) return transport.status();
    if (common != nullptr && common != *transport) return nullptr;
    common = *transport;
  }
  FanoutSpec spec;
  spec.group = context_.id;
  spec.epoch = context_.epoch;
  spec.group_rank = context_.rank;
  spec.world_ranks.assign(context_.members.begin(), context_.members.end());
  spec.lane = lane;
  absl::StatusOr<std::unique_ptr<Fanout>> fanout = common->ConnectFanout(spec);
  if (absl::IsUnimplemented(fanout.status())) return nullptr;
  return fanout;
}

absl::StatusOr<Provider*> Group::ProviderFor(const CollectiveRequest& request) {
  const auto entries = RegisteredProviders();
  size_t i = 0;
  while (!entries[i].serves(request)) ++i;  // the last serves all
  if (providers_[i] == nullptr) {
    absl::StatusOr<std::unique_ptr<Provider>> made = entries[i].make(&context_, this);
    if (!made.ok()) return made.status();
    providers_[i] = *std::move(made);
  }
  return providers_[i].get();
}

const Group::SiteMemo& Group::SiteOf(const std::source_location& site) {
  const char* file = site.file_name();
  if (sites_.empty()) [[unlikely]]
    sites_.resize(kSites);
  SiteMemo& memo = sites_[(reinterpret_cast<uintptr_t>(file) / 8 + site.line()) & (kSites - 1)];
  if (memo.file == file && memo.line == site.line()) return memo;
  memo.file = file;
  memo.line = site.line();
  const char* slash = std::strrchr(file, '/');
  const char* name = slash == nullptr ? file : slash + 1;
  // The tail of a name that is too long: its end says more than its beginning.
  constexpr size_t kLongest = sizeof(runtime::CallRecord::site) - 12;
  const size_t length = std::strlen(name);
  if (length > kLongest) name += length - kLongest;
  std::snprintf(memo.text.data(), memo.text.size(), "%s:%u", name, site.line());
  return memo;
}

uint64_t Group::NextSequence(const CollectiveRequest& request) {
  if (!IsPointToPoint(request.kind)) return ++sequence_;
  std::vector<uint64_t>& sequences = request.kind == CollectiveKind::kSend ? sent_ : received_;
  sequences.resize(context_.size);
  return ++sequences[request.peer];
}

void Group::FillSignature(const CollectiveRequest& request, const ServicePlan& service, runtime::CallRecord* record) {
  runtime::CallSignature* signature = &record->signature;
  signature->group = context_.id;
  signature->count = SignedCount(request);
  signature->epoch = context_.epoch;
  signature->root = request.root;
  signature->kind = static_cast<uint16_t>(request.kind);
  signature->dtype = static_cast<uint16_t>(request.dtype);
  signature->op = Reduces(request.kind) ? static_cast<uint8_t>(request.op) : 0;
  signature->determinism = Reduces(request.kind) ? static_cast<uint8_t>(request.determinism) : 0;
  signature->algorithm = service.algorithm;
  signature->tuning = service.tuning ^ request.parts;
  record->user_op[0] = '\0';
  if (request.user_op != nullptr) [[unlikely]]
    FillUserOp(*request.user_op, record);
  Number(request, record);
}

void Group::Number(const CollectiveRequest& request, runtime::CallRecord* record) {
  record->signature.sequence = NextSequence(request);
  if (IsPointToPoint(request.kind)) {
    // What both sides must agree on: the pair and its direction, the number of the message, count and type.
    runtime::CallSignature message = record->signature;
    message.kind = static_cast<uint16_t>(CollectiveKind::kSend);
    message.root = request.kind == CollectiveKind::kSend ? context_.rank : request.peer;
    record->wire_signature = runtime::HashSignature(message);
    return;
  }
  record->wire_signature = chain_ = runtime::ChainSignature(chain_, runtime::HashSignature(record->signature));
}

void Group::FillRecord(const CollectiveRequest& request, runtime::CallRecord* record) {
  record->bytes = MovedElements(request, request.root == context_.rank, context_.size) * SizeOf(request.dtype);
  record->group_rank = context_.rank;
  record->peer = request.peer;
  record->group_size = context_.size;
  record->device = static_cast<int16_t>(request.memory == MemoryKind::kCuda ? request.device : -1);
  NameSite(request.site, record);
}

void Group::NameSite(const std::source_location& site, runtime::CallRecord* record) {
  std::memcpy(record->site, SiteOf(site).text.data(), sizeof record->site);
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
  {
    runtime::EngineLock lock(runtime().engine());
    RememberedCall* known = memo_.Find(arguments, options);
    work = known != nullptr && status_.ok() ? Repeat(*known, arguments) : SubmitNew(arguments, options, lock);
  }
  if (!work.Done()) runtime().engine().Kick();
  return work;
}

runtime::Work Group::SubmitNew(const CallArguments& arguments, const CallOptions& options,
                               const runtime::EngineLock& lock) {
  CollectiveRequest request;
  absl::Status valid = MakeRequest(arguments, context_.rank, context_.size, &request);
  if (valid.ok()) valid = ApplyOptions(options, context_.determinism, &request);
  if (!valid.ok()) return runtime::Work::Finished(std::move(valid));
  return SubmitValid(request, options, lock, &arguments);
}

runtime::Work Group::Repeat(RememberedCall& known, const CallArguments& arguments) {
  runtime().engine().PollWhileActive(this);
  Provider& provider = *known.provider;
  AcceptedCall& call = provider.NextCall();
  FillFrom(known, &call);
  if (known.in_bytes > 0) call.request.in = arguments.in.data;
  if (known.out_bytes > 0) call.request.out = arguments.out.data;
  Number(call.request, &call.record);
  provider.Post();
  call.ticket = runtime().segment().black_box().Start(call.record, &known.description);
  return provider.Launch(call);
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
  if (ServedAlone(request)) {
    if (absl::Status named = CheckNameAlone(request.kind, options); !named.ok()) {
      return runtime::Work::Finished(std::move(named));
    }
    RunLocalCall(request);
    return runtime::Work::Finished(absl::OkStatus());
  }
  const InsideProvider inside(*this, lock);
  const absl::StatusOr<Provider*> provider = ProviderFor(request);
  if (!provider.ok()) return runtime::Work::Finished(provider.status());
  const absl::StatusOr<ServicePlan> service = (*provider)->Choose(request, options.algorithm);
  if (!service.ok()) return runtime::Work::Finished(service.status());
  AcceptedCall& call = (*provider)->NextCall();
  call.like = 0;
  call.request = request;
  if (request.blocks != nullptr) [[unlikely]] {
    if (call.blocks.use_count() != 1) call.blocks = std::make_shared<BlockTable>();  // none, or an earlier call's
    *call.blocks = *request.blocks;
    call.request.blocks = call.blocks.get();
  }
  call.timeout = options.timeout;
  call.stream = options.stream;
  call.service = *service;
  FillSignature(request, *service, &call.record);
  (*provider)->Post();
  FillRecord(request, &call.record);
  if (arguments != nullptr) memo_.Remember(*arguments, options, call, *provider, context_.rank, context_.size);
  call.ticket = runtime().segment().black_box().Start(call.record);
  return (*provider)->Launch(call);
}

std::string Group::Explain(CollectiveRequest request) {
  if (InChild()) return std::string(WhyNotInChild().message());
  runtime::EngineLock lock(runtime().engine());
  if (context_.size == 1 && request.memory == MemoryKind::kHost) return "local copy: the group has one rank";
  const absl::StatusOr<Provider*> provider = ProviderFor(request);
  if (!provider.ok()) return std::string(provider.status().message());
  request.determinism = context_.determinism;
  return "provider " + std::string((*provider)->name()) + ": " + (*provider)->Explain(request);
}

bool Group::Poll() {
  bool moved = false;
  for (const auto& provider : providers_) {
    if (provider != nullptr) moved = provider->Poll() || moved;
  }
  return moved;
}

bool Group::Active() const {
  if (inside_provider_ > 0) return true;
  return std::any_of(providers_.begin(), providers_.end(),
                     [](const auto& provider) { return provider != nullptr && provider->Active(); });
}

int Group::Arm(bool*) {
  for (const auto& provider : providers_) {
    if (provider != nullptr) provider->Arm();
  }
  return -1;
}

void Group::SetShrunkFrom(const GroupContext& parent) {
  context_.shrunk_from = parent.id;
  for (int i = 0; i < parent.size; ++i) {
    if (!HasMember(parent.members[i])) context_.lost.push_back(i);
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
  const absl::StatusOr<Provider*> provider = ProviderFor(request);
  return provider.ok() ? (*provider)->Register(buffer, deadline) : provider.status();
}

void Group::OnSplit(int color, int key, uint64_t child) {
  runtime::EngineLock lock(runtime().engine());
  const InsideProvider inside(*this, lock);
  for (const auto& provider : providers_) {
    if (provider != nullptr) provider->OnSplit(color, key, child);
  }
}

const runtime::CallRecord* Group::Pending() const {
  const runtime::CallRecord* message = nullptr;
  for (const auto& provider : providers_) {
    const runtime::CallRecord* record = provider == nullptr ? nullptr : provider->Pending();
    if (record == nullptr) continue;
    if (!runtime::IsPointToPoint(record->signature.kind)) return record;  // says more than a message
    message = record;
  }
  return message;
}

void Group::FailHere(const absl::Status& status, bool report) {
  if (!status_.ok()) return;
  status_ = status;
  if (report && Pending() == nullptr) runtime().NoteUnreportedFailure(status);
  runtime().engine().PollWhileActive(this);  // a provider may have something to stop
  for (const auto& provider : providers_) {
    if (provider != nullptr) provider->Fail(status);
  }
  TellTransportsOfEnd();
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

bool Group::HasMember(int world_rank) const {
  return std::find(context_.members.begin(), context_.members.end(), world_rank) != context_.members.end();
}

void Group::OnRanksLost(const std::vector<int>& ranks, const std::string& text) {
  if (!status_.ok() || std::none_of(ranks.begin(), ranks.end(), [this](int rank) { return HasMember(rank); })) return;
  const runtime::CallRecord* pending = Pending();
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
  } else if (WaitsIn(failure.sequence)) {
    const auto blamed = std::find(context_.members.begin(), context_.members.end(), failure.blamed_rank);
    FailEverywhere(failure.status,
                   blamed == context_.members.end() ? -1 : static_cast<int>(blamed - context_.members.begin()));
  }
}

bool Group::WaitsIn(uint64_t sequence) const {
  return std::any_of(providers_.begin(), providers_.end(),
                     [sequence](const auto& provider) { return provider != nullptr && provider->WaitsIn(sequence); });
}

// Providers with nothing under way end in order, when the group goes.
void Group::OnFinalize() {
  if (!status_.ok()) return;
  status_ = Finalized();
  for (const auto& provider : providers_) {
    if (provider != nullptr && provider->Active()) provider->Fail(status_);
  }
}

}  // namespace cohort::comm
