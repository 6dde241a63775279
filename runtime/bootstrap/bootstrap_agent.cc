// Ranks that dlaunch started: everything comes from the node's agent.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/bootstrap/agent_connection.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/bootstrap/welcome.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::runtime {
namespace {

constexpr uint32_t kMaxWorld = 1u << 24;
constexpr int kMaxListedRanks = 8192;
constexpr size_t kMaxText = 8 * 1024;
constexpr std::chrono::nanoseconds kRetryAfter = std::chrono::milliseconds(100);

RankSet FromProto(const v1::RankSet& proto) {
  RankSet set;
  set.everyone = proto.everyone();
  for (uint32_t rank : proto.ranks()) {
    if (rank < kMaxWorld) set.ranks.push_back(static_cast<int>(rank));
  }
  return set;
}

void ToProto(const RankSet& set, v1::RankSet* proto) {
  // A longer list would not fit into a packet; a rank that knows nothing of the group ignores its failure.
  proto->set_everyone(set.everyone || set.ranks.size() > kMaxListedRanks);
  if (proto->everyone()) return;
  for (int rank : set.ranks) proto->add_ranks(static_cast<uint32_t>(rank));
}

v1::VariableRequest::Kind ToProto(VariableCall::Kind kind) {
  switch (kind) {
    case VariableCall::Kind::kGet:
      return v1::VariableRequest::KIND_GET;
    case VariableCall::Kind::kSet:
      return v1::VariableRequest::KIND_SET;
    case VariableCall::Kind::kAdd:
      return v1::VariableRequest::KIND_ADD;
    case VariableCall::Kind::kCompareSet:
      return v1::VariableRequest::KIND_COMPARE_SET;
    case VariableCall::Kind::kDelete:
      return v1::VariableRequest::KIND_DELETE;
    case VariableCall::Kind::kCount:
      return v1::VariableRequest::KIND_COUNT;
  }
  return v1::VariableRequest::KIND_UNSPECIFIED;
}

// How long the agent keeps a request that waits, of one that may wait until the deadline.
std::chrono::milliseconds WaitOf(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
  return std::chrono::milliseconds(std::clamp<int64_t>(left, 1, 60'000));
}

// The agent keeps the time. Its answer that the time ran out may take a moment longer. A recorder asks again rather
// than wait, since the end of its process waits for it.
constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::chrono::milliseconds kRecorderPatience{50};

class AgentBootstrap final : public Bootstrap {
 public:
  AgentBootstrap(std::string address, int local_rank, Segment::Role role)
      : address_(std::move(address)), local_rank_(local_rank), role_(role) {}

  absl::StatusOr<Joined> Join(Deadline deadline) override;
  absl::Status Put(std::string_view key, std::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override;
  absl::StatusOr<VariableResult> CallVariable(const VariableCall& call, Deadline deadline) override;
  bool Poll(BootstrapListener& listener) override;
  bool Look() override { return !said_gone_ && connection_.Receive(); }
  void ReportStall(uint64_t group, uint64_t epoch, uint64_t sequence, const RankSet& members, bool expired) override;
  void ReportWait(uint64_t group, uint64_t epoch, const RankSet& members) override;
  void ReportGroupFailure(const GroupFailure& failure) override;
  bool AskToBeKilled(const std::string& why) override;
  void AskForNotices() override;
  void ReportPreemptionStep(uint64_t step) override;
  void ReportPreempted(uint64_t step) override;
  void Goodbye() override;
  void MayStay() override { stays_ = true; }
  bool HasEpochs() const override { return true; }
  absl::Status AwaitNextEpoch(Deadline deadline) override;
  std::unique_ptr<Bootstrap> NewOfThisKind() const override {
    auto next = std::make_unique<AgentBootstrap>(address_, local_rank_, role_);
    next->stays_ = stays_;
    return next;
  }

 private:
  // Each runtime of the epoch has a store of its own, as its ranks may put the same keys.
  std::string KeyOf(std::string_view key) const {
    return reopened_ == 0 ? std::string(key) : "runtime-" + std::to_string(reopened_) + "/" + std::string(key);
  }
  // Until when to wait for an answer that the agent gives by the deadline.
  Deadline Patience(Deadline deadline) const {
    if (deadline.infinite()) return deadline;
    return Deadline(std::max(deadline.time(), Deadline::Clock::now()) +
                    (role_ == Segment::Role::kRecorder ? kRecorderPatience : kPatience));
  }
  absl::Status FetchNodes(uint32_t count, Identity* identity, Deadline deadline);
  v1::StallReport StallIn(uint64_t group, uint64_t epoch, const RankSet& members) const;
  void Deliver(const v1::AgentMessage& message, BootstrapListener& listener) const;
  void SayGone(BootstrapListener& listener);

  const std::string address_;
  const int local_rank_;
  const Segment::Role role_;
  bool stays_ = false;
  AgentConnection connection_;
  RankControl* control_ = nullptr;
  uint32_t seen_events_ = 0;
  bool said_gone_ = false;
  int rank_ = 0;
  int world_size_ = 1;
  uint64_t reopened_ = 0;  // runtimes that this rank has finalized before, in this epoch
  std::string node_name_;
};

absl::StatusOr<Bootstrap::Joined> AgentBootstrap::Join(Deadline deadline) {
  v1::RankMessage message;
  v1::RankHello* hello = message.mutable_hello();
  hello->set_protocol(kAgentProtocol);
  hello->set_local_rank(static_cast<uint32_t>(local_rank_));
  hello->set_stays(stays_);
  hello->set_records(role_ == Segment::Role::kRecorder);
  v1::AgentMessage first;
  FileDescriptor descriptor;
  COHORT_RETURN_IF_ERROR(connection_.Connect(address_, message, deadline, &first, &descriptor));
  if (first.has_refused() && first.refused().empty()) {
    return absl::AlreadyExistsError("another process of this rank has joined");
  }
  if (first.has_refused()) return absl::FailedPreconditionError("the agent refused this rank: " + first.refused());
  if (!first.has_welcome()) return BadWelcome("another message came first");
  if (!descriptor.valid()) return BadWelcome("no node segment came with it");

  Joined joined;
  COHORT_ASSIGN_OR_RETURN(joined.identity, ReadWelcome(first.welcome()));
  if (joined.identity.local_rank != local_rank_) return BadWelcome("it is for another local rank");
  COHORT_RETURN_IF_ERROR(AddNodes(first.welcome().nodes(), &joined.identity));
  COHORT_RETURN_IF_ERROR(FetchNodes(first.welcome().node_count(), &joined.identity, deadline));
  COHORT_RETURN_IF_ERROR(CheckNodes(joined.identity));
  COHORT_ASSIGN_OR_RETURN(joined.segment, Segment::Attach(descriptor.Release(), joined.identity.local_rank, role_));
  if (joined.segment->local_ranks() != joined.identity.local_world_size) {
    return BadWelcome("the node segment was made for " + std::to_string(joined.segment->local_ranks()) + " ranks");
  }
  reopened_ = ReopenedOf(joined.segment->epoch());
  control_ = &joined.segment->control(joined.identity.local_rank);
  rank_ = joined.identity.rank;
  world_size_ = joined.identity.world_size;
  node_name_ = joined.identity.nodes[static_cast<size_t>(joined.identity.node)].name;
  return joined;
}

// The pages of the node list that did not fit into the welcome.
absl::Status AgentBootstrap::FetchNodes(uint32_t count, Identity* identity, Deadline deadline) {
  while (identity->nodes.size() < count) {
    v1::RankMessage message;
    const uint64_t request = connection_.NextRequest();
    message.mutable_nodes()->set_request(request);
    message.mutable_nodes()->set_first(static_cast<uint32_t>(identity->nodes.size()));
    COHORT_ASSIGN_OR_RETURN(const v1::AgentMessage answer, connection_.Call(message, request, deadline));
    if (answer.nodes().nodes().empty()) return BadWelcome("the list of nodes ends early");
    COHORT_RETURN_IF_ERROR(AddNodes(answer.nodes().nodes(), identity));
  }
  return absl::OkStatus();
}

absl::Status AgentBootstrap::Put(std::string_view key, std::string_view value, Deadline deadline) {
  v1::RankMessage message;
  const uint64_t request = connection_.NextRequest();
  message.mutable_put()->set_request(request);
  message.mutable_put()->set_key(KeyOf(key));
  message.mutable_put()->set_value(std::string(value));
  COHORT_ASSIGN_OR_RETURN(const v1::AgentMessage answer, connection_.Call(message, request, deadline));
  if (!answer.put().error().empty()) return absl::AlreadyExistsError(answer.put().error());
  return absl::OkStatus();
}

absl::StatusOr<std::string> AgentBootstrap::Get(std::string_view key, Deadline deadline) {
  while (true) {
    v1::RankMessage message;
    const uint64_t request = connection_.NextRequest();
    message.mutable_get()->set_request(request);
    message.mutable_get()->set_key(KeyOf(key));
    const std::chrono::milliseconds timeout = WaitOf(deadline);
    const auto asked_until = Deadline::Clock::now() + timeout;
    message.mutable_get()->set_timeout_ms(static_cast<uint32_t>(timeout.count()));
    absl::StatusOr<v1::AgentMessage> answer = connection_.Call(message, request, Patience(deadline));
    if (!answer.ok()) return answer.status();  // none in time says nothing of the key
    if (answer->get().found()) return answer->get().value();
    if (deadline.passed()) return absl::NotFoundError("nobody has put the key " + std::string(key));
    // An answer before its time: the store holds no more waiting requests.
    if (Deadline::Clock::now() < asked_until) std::this_thread::sleep_for(std::min(kRetryAfter, deadline.left()));
  }
}

absl::StatusOr<VariableResult> AgentBootstrap::CallVariable(const VariableCall& call, Deadline deadline) {
  while (true) {
    v1::RankMessage message;
    const uint64_t request = connection_.NextRequest();
    v1::VariableRequest& asked = *message.mutable_variable();
    asked.set_request(request);
    asked.set_kind(ToProto(call.kind));
    if (call.kind != VariableCall::Kind::kCount) asked.set_key(KeyOf(call.key));
    asked.set_value(call.value);
    asked.set_expected(call.expected);
    asked.set_amount(call.amount);
    const std::chrono::milliseconds timeout = WaitOf(deadline);
    const auto asked_until = Deadline::Clock::now() + timeout;
    if (call.kind == VariableCall::Kind::kGet) asked.set_timeout_ms(static_cast<uint32_t>(timeout.count()));
    COHORT_ASSIGN_OR_RETURN(const v1::AgentMessage answer, connection_.Call(message, request, Patience(deadline)));
    const v1::VariableReply& reply = answer.variable();
    if (!reply.error().empty()) return absl::InvalidArgumentError(reply.error());
    if (reply.found() || call.kind != VariableCall::Kind::kGet) {
      return VariableResult{reply.found(), reply.value(), reply.number()};
    }
    if (deadline.passed()) return absl::NotFoundError("nobody has set the variable " + call.key);
    // As in Get: the store holds no more waiting requests.
    if (Deadline::Clock::now() < asked_until) std::this_thread::sleep_for(std::min(kRetryAfter, deadline.left()));
  }
}

bool AgentBootstrap::Poll(BootstrapListener& listener) {
  const uint32_t events = control_->events.load(std::memory_order_relaxed);
  if (events == seen_events_ && !connection_.pending()) [[likely]]
    return false;
  if (said_gone_) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  seen_events_ = events;
  connection_.Receive();
  const std::deque<v1::AgentMessage> news = connection_.Take();
  for (const v1::AgentMessage& message : news) Deliver(message, listener);
  if (!connection_.status().ok()) SayGone(listener);
  return !news.empty() || said_gone_;
}

void AgentBootstrap::Deliver(const v1::AgentMessage& message, BootstrapListener& listener) const {
  if (message.has_ranks_lost()) {
    std::vector<int> ranks;
    for (uint32_t rank : message.ranks_lost().ranks()) {
      if (rank < static_cast<uint32_t>(world_size_)) ranks.push_back(static_cast<int>(rank));
    }
    listener.OnRanksLost(ranks, message.ranks_lost().text());
  } else if (message.has_group_failure()) {
    const v1::GroupFailure& proto = message.group_failure();
    GroupFailure failure;
    failure.group = proto.group();
    failure.epoch = proto.epoch();
    failure.members = FromProto(proto.members());
    // A failure is one, whatever the code says.
    const bool known = proto.code() >= 1 && proto.code() <= 16;
    const auto code = known ? static_cast<absl::StatusCode>(proto.code()) : absl::StatusCode::kUnknown;
    failure.status = absl::Status(code, proto.text());
    failure.blamed_rank = proto.blamed_rank();
    failure.from_rank = proto.from_rank();
    failure.sequence = proto.sequence();
    listener.OnGroupFailure(failure);
  } else if (message.has_preemption()) {
    listener.OnPreemptionNotice(message.preemption().signal());
  } else if (message.has_stop_step()) {
    const v1::StopStep& stop = message.stop_step();
    listener.OnStopStep(stop.none() ? std::nullopt : std::optional<uint64_t>(stop.step()));
  }
}

void AgentBootstrap::SayGone(BootstrapListener& listener) {
  said_gone_ = true;
  std::vector<int> others;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank != rank_) others.push_back(rank);
  }
  listener.OnRanksLost(others, "the agent of " + node_name_ + " (pid " + std::to_string(connection_.agent_pid()) +
                                   ") is gone, so rank " + std::to_string(rank_) + " no longer belongs to the job");
}

void AgentBootstrap::ReportStall(uint64_t group, uint64_t epoch, uint64_t sequence, const RankSet& members,
                                 bool expired) {
  v1::RankMessage message;
  *message.mutable_stall() = StallIn(group, epoch, members);
  message.mutable_stall()->set_sequence(sequence);
  message.mutable_stall()->set_expired(expired);
  connection_.Post(message);
}

void AgentBootstrap::ReportWait(uint64_t group, uint64_t epoch, const RankSet& members) {
  v1::RankMessage message;
  *message.mutable_stall() = StallIn(group, epoch, members);
  message.mutable_stall()->set_message(true);
  connection_.Post(message);
}

v1::StallReport AgentBootstrap::StallIn(uint64_t group, uint64_t epoch, const RankSet& members) const {
  v1::StallReport stall;
  stall.set_group(group);
  stall.set_epoch(epoch);
  ToProto(members, stall.mutable_members());
  stall.set_whole_world(members.everyone || static_cast<int>(members.ranks.size()) == world_size_);
  stall.set_watched(role_ == Segment::Role::kRecorder);
  return stall;
}

void AgentBootstrap::ReportGroupFailure(const GroupFailure& failure) {
  v1::RankMessage message;
  v1::GroupFailure* proto = message.mutable_group_failure();
  proto->set_group(failure.group);
  proto->set_epoch(failure.epoch);
  ToProto(failure.members, proto->mutable_members());
  proto->set_code(static_cast<uint32_t>(failure.status.code()));
  proto->set_text(std::string(failure.status.message().substr(0, kMaxText)));
  proto->set_blamed_rank(failure.blamed_rank);
  proto->set_from_rank(failure.from_rank);
  connection_.Post(message);
}

bool AgentBootstrap::AskToBeKilled(const std::string& why) {
  v1::RankMessage message;
  message.mutable_kill()->set_text(why.substr(0, kMaxText));
  connection_.Post(message);
  return true;
}

void AgentBootstrap::AskForNotices() {
  v1::RankMessage message;
  message.mutable_preemption();
  connection_.Post(message);
}

void AgentBootstrap::ReportPreemptionStep(uint64_t step) {
  v1::RankMessage message;
  message.set_preemption_step(step);
  connection_.Post(message);
}

void AgentBootstrap::ReportPreempted(uint64_t step) {
  v1::RankMessage message;
  message.set_preempted(step);
  connection_.Post(message);
}

void AgentBootstrap::Goodbye() {
  v1::RankMessage message;
  message.mutable_goodbye();
  connection_.Post(message);
  control_->state.store(kRankFinalised, std::memory_order_release);
}

absl::Status AgentBootstrap::AwaitNextEpoch(Deadline deadline) {
  control_ = nullptr;
  v1::RankMessage message;
  message.mutable_next_epoch();
  return connection_.SendLast(message, deadline);
}

}  // namespace

std::unique_ptr<Bootstrap> BootstrapFromAgent(std::string address, int local_rank) {
  return std::make_unique<AgentBootstrap>(std::move(address), local_rank, Segment::Role::kRuntime);
}

std::unique_ptr<Bootstrap> RecorderFromAgent(std::string address, int local_rank) {
  return std::make_unique<AgentBootstrap>(std::move(address), local_rank, Segment::Role::kRecorder);
}

}  // namespace cohort::runtime
