#include "cohort/launcher/agent/rank/rank_service.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/agent/rank/call_state.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/black_box.h"

namespace cohort::launcher {
namespace {

using runtime::kAgentProtocol;

// The nodes from `first` on, as many as fit into a packet beside other fields. The rank asks for the rest.
void AddPage(const google::protobuf::RepeatedPtrField<v1::Node>& nodes, uint64_t first,
             google::protobuf::RepeatedPtrField<v1::Node>* page) {
  constexpr int kNodesPerPage = 400;
  constexpr size_t kBytesPerPage = kMaxRankPacket / 2;
  constexpr size_t kFraming = 8;
  size_t bytes = 0;
  for (uint64_t i = first; i < static_cast<uint64_t>(nodes.size()) && page->size() < kNodesPerPage; ++i) {
    const v1::Node& node = nodes.Get(static_cast<int>(i));
    bytes += node.ByteSizeLong() + kFraming;
    if (bytes > kBytesPerPage && !page->empty()) return;
    *page->Add() = node;
  }
}

bool Includes(const v1::RankSet& set, uint32_t rank) {
  return set.everyone() || std::find(set.ranks().begin(), set.ranks().end(), rank) != set.ranks().end();
}

}  // namespace

RankService::RankService(EventLoop* loop, const v1::Assignment& assignment, std::string data_interface_ip,
                         Callbacks callbacks)
    : assignment_(assignment),
      data_interface_ip_(std::move(data_interface_ip)),
      callbacks_(std::move(callbacks)),
      socket_(loop, {[this](RankSocket::PeerId from, const std::string& packet) { OnPacket(from, packet); },
                     [this](RankSocket::PeerId from) { OnClosed(from); }}),
      peer_of_rank_(assignment.placement().ranks_size(), 0),
      store_(assignment.epoch(),
             {.to_rendezvous = callbacks_.to_rendezvous,
              .to_rank = [this](RankSocket::PeerId to,
                                const v1::AgentMessage& message) { SendToRank(peers_.at(to).local_rank, message); },
              .to_agent = callbacks_.to_agent}),
      preemption_(assignment.placement().ranks_size()) {}

absl::Status RankService::Start(const std::string& address) {
  const int ranks = assignment_.placement().ranks_size();
  runtime::Segment::Options options;
  options.local_ranks = ranks;
  options.epoch = assignment_.epoch();
  options.job_id = assignment_.job().job_id();
  options.node = assignment_.placement().name();
  options.reserve_fixed_part = false;  // most of the time that a node of programs without cohort would take to start
  COHORT_RETURN_IF_ERROR(segments_.Start(options));
  const auto segment_of = [this](int local_rank) -> runtime::Segment& { return segments_.Of(local_rank); };
  waits_ = std::make_unique<RankWaits>(segment_of, &assignment_);
  // A few more than ranks, so that strangers are told why they are refused.
  return socket_.Listen(address, ranks + 16);
}

void RankService::SendTo(RankSocket::PeerId to, const v1::AgentMessage& message, int fd) {
  socket_.Send(to, message.SerializeAsString(), fd);
}

void RankService::SendToRank(int local_rank, const v1::AgentMessage& message) {
  const RankSocket::PeerId peer = peer_of_rank_[local_rank];
  if (peer == 0) return;
  SendTo(peer, message);
  segments_.Of(local_rank).control(local_rank).events.fetch_add(1, std::memory_order_release);
  segments_.Of(local_rank).Wake(local_rank);
}

bool RankService::Joined(int local_rank) const {
  const RankSocket::PeerId peer = peer_of_rank_[local_rank];
  return peer != 0 && peers_.at(peer).state == PeerState::kJoined;
}

int RankService::LocalRankOf(uint32_t rank) const {
  const auto& ranks = assignment_.placement().ranks();
  if (ranks.empty() || rank < ranks[0].rank() || rank - ranks[0].rank() >= static_cast<uint32_t>(ranks.size())) {
    return -1;
  }
  return static_cast<int>(rank - ranks[0].rank());
}

void RankService::OnPacket(RankSocket::PeerId from, const std::string& packet) {
  v1::RankMessage message;
  const auto peer = peers_.find(from);
  if (!message.ParseFromString(packet) || (peer == peers_.end() && !message.has_hello())) {
    v1::AgentMessage refusal;
    refusal.set_refused("this is no message of a rank, or not the one that comes first (hello)");
    SendTo(from, refusal);
    socket_.Close(from);
    return;
  }
  v1::FromAgent up;
  switch (message.kind_case()) {
    case v1::RankMessage::kHello:
      OnHello(from, message.hello());
      break;
    case v1::RankMessage::kNodes:
      OnNodes(from, message.nodes());
      break;
    case v1::RankMessage::kPut:
      store_.OnPut(from, message.put());
      break;
    case v1::RankMessage::kGet:
      store_.OnGet(from, message.get());
      break;
    case v1::RankMessage::kVariable:
      store_.OnVariable(from, message.variable());
      break;
    case v1::RankMessage::kStall:
      waits_->NoteGroup(message.stall());
      if (message.stall().message()) break;
      *up.mutable_stall() = message.stall();
      callbacks_.to_rendezvous(up);
      break;
    case v1::RankMessage::kGroupFailure:
      if (SaidAlready(message.group_failure())) break;
      *up.mutable_group_failure() = message.group_failure();
      callbacks_.to_rendezvous(up);
      break;
    case v1::RankMessage::kGoodbye:
      if (peer->second.state != PeerState::kJoined) break;
      peer->second.state = PeerState::kFinalized;
      segments_.Leave(peer->second.local_rank);
      callbacks_.on_event(Goodbye{peer->second.local_rank});
      preemption_.OnEnd(peer->second.local_rank, /*in_order=*/true);
      AnswerPreemption();
      break;
    case v1::RankMessage::kKill:
      callbacks_.on_event(KillWanted{peer->second.local_rank, message.kill().text()});
      break;
    case v1::RankMessage::kPreemption:
      OnPreemptionWish(peer->second.local_rank);
      break;
    case v1::RankMessage::kPreemptionStep:
      preemption_.OnStep(peer->second.local_rank, message.preemption_step());
      AnswerPreemption();
      break;
    case v1::RankMessage::kPreempted:
      up.mutable_preempted()->set_step(message.preempted());
      up.mutable_preempted()->set_epoch(assignment_.epoch());
      if (preemption_.OnPreempted()) callbacks_.to_rendezvous(up);
      break;
    case v1::RankMessage::kNextEpoch:
      OnNextEpoch(from);
      break;
    case v1::RankMessage::KIND_NOT_SET:
      break;
  }
}

void RankService::OnClosed(RankSocket::PeerId from) {
  const auto found = peers_.find(from);
  if (found == peers_.end()) return;
  const Peer peer = found->second;
  peers_.erase(found);
  peer_of_rank_[peer.local_rank] = 0;
  store_.Forget(from);
  if (peer.state == PeerState::kJoined) callbacks_.on_event(Vanished{peer.local_rank, peer.pid});
}

std::string RankService::WhyRefused(RankSocket::PeerId from, const v1::RankHello& hello) {
  if (hello.protocol() != kAgentProtocol) {
    return "the program speaks version " + std::to_string(hello.protocol()) + " of the agent's protocol and dlaunch " +
           std::to_string(kAgentProtocol) + "; build both from one version of cohort";
  }
  if (hello.local_rank() >= peer_of_rank_.size()) {
    return "there is no local rank " + std::to_string(hello.local_rank()) +
           " on this node; COHORT_LOCAL_RANK was changed";
  }
  const int local_rank = static_cast<int>(hello.local_rank());
  if (socket_.UserOf(from) != ::getuid()) return "another user's process";
  const pid_t pid = socket_.PidOf(from);
  const pid_t group = callbacks_.group_of(local_rank);
  if (group == 0 || !DescendsFrom(pid, group)) {
    return "process " + std::to_string(pid) + " does not belong to local rank " + std::to_string(local_rank);
  }
  EndFormer(local_rank, !hello.records());
  if (peer_of_rank_[local_rank] == 0) return "";
  const pid_t other = peers_.at(peer_of_rank_[local_rank]).pid;
  if (other == pid) {
    return "this process (" + std::to_string(pid) +
           ") has a runtime already: finalize it before another one is made, or use it in all places";
  }
  return "process " + std::to_string(other) + " is local rank " + std::to_string(local_rank) +
         " already; a rank is one process, and a child of it that joins a group of its own does so without "
         "COHORT_AGENT";
}

void RankService::EndFormer(int local_rank, bool newcomer_joins) {
  const RankSocket::PeerId former = peer_of_rank_[local_rank];
  if (former == 0) return;
  socket_.TakeRest(former, /*last=*/false);  // where its goodbye may be
  if (peer_of_rank_[local_rank] != former) return;
  const PeerState state = peers_.at(former).state;
  if (state != PeerState::kFinalized && !(state == PeerState::kRecords && newcomer_joins)) return;
  peers_.erase(former);
  peer_of_rank_[local_rank] = 0;
  store_.Forget(former);
  socket_.Close(former);
}

void RankService::OnHello(RankSocket::PeerId from, const v1::RankHello& hello) {
  std::string why = peers_.contains(from) ? "a second hello" : WhyRefused(from, hello);
  const int local_rank = static_cast<int>(hello.local_rank());
  if (why.empty()) {
    why = std::string((hello.records() ? segments_.Record(local_rank) : segments_.Open(local_rank)).message());
  }
  if (!why.empty()) {
    const bool taken =
        hello.records() && hello.local_rank() < peer_of_rank_.size() && peer_of_rank_[hello.local_rank()] != 0;
    v1::AgentMessage refusal;
    refusal.set_refused(taken ? "" : std::move(why));
    SendTo(from, refusal);
    socket_.Close(from);
    return;
  }
  const pid_t pid = socket_.PidOf(from);
  peers_[from] = {
      .local_rank = local_rank, .pid = pid, .state = hello.records() ? PeerState::kRecords : PeerState::kJoined};
  peer_of_rank_[local_rank] = from;
  if (hello.records()) {
    callbacks_.on_event(Recorded{local_rank, pid});
  } else {
    preemption_.OnJoin(local_rank);
    callbacks_.on_event(Hello{local_rank, pid, hello.stays()});
  }
  Welcome(from, local_rank);
  if (!hello.records()) TellEarlyNews(local_rank);  // the runtime of the rank may come later
}

// Sending may end a connection, whose end is news.
void RankService::TellEarlyNews(int local_rank) {
  std::vector<v1::AgentMessage> messages;
  for (auto& [to, message] : early_news_) {
    if (to == local_rank) messages.push_back(std::move(message));
  }
  std::erase_if(early_news_, [=](const auto& kept) { return kept.first == local_rank; });
  for (const v1::AgentMessage& message : messages) SendToRank(local_rank, message);
  for (size_t i = 0; i < losses_.size(); ++i) SendToRank(local_rank, losses_[i]);
}

void RankService::Welcome(RankSocket::PeerId to, int local_rank) {
  const v1::RankPlacement& rank = assignment_.placement().ranks(local_rank);
  v1::AgentMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_protocol(kAgentProtocol);
  welcome.set_job_id(assignment_.job().job_id());
  welcome.set_epoch(assignment_.epoch());
  welcome.set_rank(rank.rank());
  welcome.set_world_size(assignment_.world_size());
  welcome.set_node(assignment_.placement().node());
  welcome.set_local_rank(rank.local_rank());
  welcome.set_local_world_size(assignment_.placement().ranks_size());
  welcome.set_devices_per_rank(assignment_.job().devices_per_rank());
  *welcome.mutable_devices() = rank.devices();
  welcome.set_node_count(assignment_.nodes_size());
  AddPage(assignment_.nodes(), 0, welcome.mutable_nodes());
  welcome.set_job_secret(assignment_.job().job_secret());
  welcome.set_data_interface_ip(data_interface_ip_);
  welcome.set_nodes_share_host(assignment_.job().nodes_share_host());
  SendTo(to, message, segments_.Of(local_rank).fd());
}

void RankService::OnNodes(RankSocket::PeerId from, const v1::NodesRequest& request) {
  v1::AgentMessage message;
  v1::NodesReply& reply = *message.mutable_nodes();
  reply.set_request(request.request());
  AddPage(assignment_.nodes(), request.first(), reply.mutable_nodes());
  SendToRank(peers_.at(from).local_rank, message);
}

bool RankService::SaidAlready(const v1::GroupFailure& failure) {
  if (failure.code() != static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded)) return false;
  const std::pair<uint64_t, uint64_t> group(failure.group(), failure.epoch());
  return std::exchange(last_expired_, group) == group;
}

void RankService::OnGroupFailure(const v1::GroupFailure& failure) {
  v1::AgentMessage message;
  *message.mutable_group_failure() = failure;
  for (const v1::RankPlacement& rank : assignment_.placement().ranks()) {
    if (static_cast<int64_t>(rank.rank()) == failure.from_rank() || !Includes(failure.members(), rank.rank())) continue;
    const int local_rank = static_cast<int>(rank.local_rank());
    if (Joined(local_rank)) {
      SendToRank(local_rank, message);
    } else if (early_news_.size() < kMaxEarlyNews) {
      early_news_.emplace_back(local_rank, message);
    }
  }
}

void RankService::OnRanksLost(const v1::RanksLost& lost) {
  for (const uint32_t rank : lost.ranks()) {
    if (const int local_rank = LocalRankOf(rank); local_rank >= 0) MarkLost(local_rank);
  }
  v1::AgentMessage message;
  *message.mutable_ranks_lost() = lost;
  if (losses_.size() < kMaxEarlyNews) losses_.push_back(message);
  for (size_t local_rank = 0; local_rank < peer_of_rank_.size(); ++local_rank) {
    if (Joined(static_cast<int>(local_rank))) SendToRank(static_cast<int>(local_rank), message);
  }
}

v1::InspectReply RankService::Inspect(const v1::InspectRequest& request) {
  v1::InspectReply reply;
  reply.set_request(request.request());
  for (const v1::RankPlacement& rank : assignment_.placement().ranks()) {
    if (!Includes(request.members(), rank.rank())) continue;
    const int local_rank = static_cast<int>(rank.local_rank());
    *reply.add_calls() = InspectOperation(segments_.Of(local_rank).black_box_of(local_rank), rank.rank(),
                                          request.group(), request.epoch(), request.sequence());
  }
  return reply;
}

void RankService::TakeRest(int local_rank, bool for_good) {
  if (peer_of_rank_[local_rank] != 0) socket_.TakeRest(peer_of_rank_[local_rank], for_good);
}

void RankService::MarkLost(int local_rank) {
  segments_.MarkEnded(local_rank, runtime::kRankLost);
  preemption_.OnEnd(local_rank, /*in_order=*/false);
  AnswerPreemption();
}

void RankService::MarkEnded(int local_rank) {
  segments_.MarkEnded(local_rank, runtime::kRankFinalised);
  preemption_.OnEnd(local_rank, /*in_order=*/true);
  AnswerPreemption();
}

void RankService::OnNextEpoch(RankSocket::PeerId from) {
  Peer& peer = peers_.at(from);
  if (peer.state != PeerState::kJoined) return;
  peer.state = PeerState::kLeftEpoch;
  MarkLost(peer.local_rank);
  if (assignment_.job().max_restarts() > 0) return callbacks_.on_event(EpochLeft{peer.local_rank});
  v1::AgentMessage refusal;
  refusal.set_refused("there is no next epoch: dlaunch was not told to restart the job (--max-restarts)");
  SendTo(from, refusal);
  callbacks_.on_event(Goodbye{peer.local_rank});
}

void RankService::OnPreemptionWish(int local_rank) {
  v1::FromAgent up;
  up.mutable_preemption();
  if (preemption_.OnWish(local_rank)) callbacks_.to_rendezvous(up);
  if (!preemption_.notice().has_value()) return;
  v1::AgentMessage message;
  *message.mutable_preemption() = *preemption_.notice();
  SendToRank(local_rank, message);
}

void RankService::OnPreemption(const v1::PreemptionNotice& notice) {
  preemption_.OnNotice(notice);
  v1::AgentMessage message;
  *message.mutable_preemption() = notice;
  for (size_t local_rank = 0; local_rank < peer_of_rank_.size(); ++local_rank) {
    const int rank = static_cast<int>(local_rank);
    if (preemption_.wished(rank)) SendToRank(rank, message);  // the others learn it when they ask
  }
  AnswerPreemption();
}

void RankService::OnStopStep(const v1::StopStep& step) {
  v1::AgentMessage message;
  *message.mutable_stop_step() = step;
  for (size_t local_rank = 0; local_rank < peer_of_rank_.size(); ++local_rank) {
    if (preemption_.wished(static_cast<int>(local_rank))) SendToRank(static_cast<int>(local_rank), message);
  }
}

void RankService::AnswerPreemption() {
  const std::optional<v1::NodeStep> answer = preemption_.TakeAnswer();
  if (!answer.has_value()) return;
  v1::FromAgent up;
  *up.mutable_preemption_step() = *answer;
  up.mutable_preemption_step()->set_epoch(assignment_.epoch());
  callbacks_.to_rendezvous(up);
}

}  // namespace cohort::launcher
