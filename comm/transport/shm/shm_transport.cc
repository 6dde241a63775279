#include "cohort/comm/transport/shm/shm_transport.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cohort/comm/transport/shm/endpoint.h"
#include "cohort/comm/transport/shm/gate.h"
#include "cohort/comm/transport/shm/layout.h"
#include "cohort/comm/transport/shm/member_memory.h"
#include "cohort/comm/transport/shm/private_memory.h"
#include "cohort/comm/transport/shm/stream_reader.h"
#include "cohort/comm/transport/shm/stream_writer.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

using shm::OwnEndpoint;
using shm::PeerEndpoint;

// From this many local ranks on, the large rings would cost more memory than they are worth.
constexpr int kManyLocalRanks = 16;

// A link or fan-out, as OnPeerLost needs it.
class LossTarget {
 public:
  virtual ~LossTarget() = default;
  virtual void OnLost(int world_rank, const absl::Status& status) = 0;
};

}  // namespace

struct ShmTransport::State {
  State(runtime::Segment& segment, int world_rank, LocalRankOf local_rank_of, ShmOptions options)
      : segment(segment),
        world_rank(world_rank),
        local_rank_of(std::move(local_rank_of)),
        memory(segment.local_rank(), segment.local_ranks(), options.private_reads) {}

  runtime::Segment& segment;
  int world_rank;
  LocalRankOf local_rank_of;
  shm::PrivateMemory memory;
  shm::GateField gates;
  shm::Graveyard graveyard;
  std::unordered_set<LossTarget*> targets;
  std::vector<std::pair<int, absl::Status>> lost;

  size_t grown_rings = shm::kGrownRingsBytes;

  bool many_ranks() const { return segment.local_ranks() >= kManyLocalRanks; }
  bool share_cpus() const { return segment.local_ranks() > segment.cpus(); }
  size_t direct_from() const { return share_cpus() ? shm::kDirectFromSharingCpus : shm::kDirectFrom; }
  shm::StreamLimits link_limits() {
    return {.direct_from = direct_from(),
            .private_from = share_cpus() ? shm::kPrivateFromSharingCpus : shm::kPrivateFrom,
            .grown_rings = many_ranks() ? nullptr : &grown_rings};
  }
  shm::StreamLimits fanout_limits(size_t readers) {
    return {.longest = shm::kPartBytes,
            .direct_from = direct_from(),
            .private_from = share_cpus() || readers > 1 ? SIZE_MAX : shm::kPrivateFrom,
            .grown_rings = many_ranks() ? nullptr : &grown_rings};
  }
};

namespace {

class ShmLink final : public Link, public LossTarget {
 public:
  ShmLink(std::shared_ptr<ShmTransport::State> state, std::unique_ptr<OwnEndpoint> own, PeerEndpoint peer)
      : state_(std::move(state)),
        own_(std::move(own)),
        peers_{std::move(peer)},
        writer_(state_->segment, *own_, peers_, state_->memory.ways(), state_->link_limits()),
        reader_(state_->segment, *own_, peers_.front(), &state_->memory, &writer_.arrivals()) {
    state_->targets.insert(this);
    for (const auto& [rank, status] : state_->lost) OnLost(rank, status);
  }
  ~ShmLink() override {
    state_->targets.erase(this);
    own_->Close();
    state_->graveyard.Bury(std::move(own_), std::move(peers_));
  }

  Progress TrySend(SendOperation& operation) override {
    return lost_.ok() ? writer_.TrySend(operation) : FailLost(operation.error);
  }
  Progress TrySendQuietly(SendOperation& operation) override {
    return lost_.ok() ? writer_.TrySendQuietly(operation) : FailLost(operation.error);
  }
  void Wake() override { writer_.Wake(); }
  void Prepare(size_t bytes) override { writer_.Prepare(bytes); }
  InlineTerms inline_terms() const override { return {.most_bytes = shm::kPartBytes}; }
  Progress TryRecv(RecvOperation& operation) override {
    return lost_.ok() ? reader_.TryRecv(operation) : FailLost(operation.error);
  }
  void OnLost(int world_rank, const absl::Status& status) override {
    if (world_rank == peers_.front().address().world_rank && lost_.ok()) lost_ = status;
  }

 private:
  Progress FailLost(absl::Status& error) const {
    error = lost_;
    return Progress::kFailed;
  }

  std::shared_ptr<ShmTransport::State> state_;
  std::unique_ptr<OwnEndpoint> own_;
  std::vector<PeerEndpoint> peers_;  // one
  shm::StreamWriter writer_;
  shm::StreamReader reader_;
  absl::Status lost_;
};

class ShmFanout final : public Fanout, public LossTarget {
 public:
  // `peers`: all other members, in the order of their group ranks.
  ShmFanout(std::shared_ptr<ShmTransport::State> state, std::unique_ptr<OwnEndpoint> own,
            std::unique_ptr<shm::Gate> gate, int group_rank, std::vector<PeerEndpoint> peers)
      : state_(std::move(state)),
        own_(std::move(own)),
        gate_(std::move(gate)),
        group_rank_(group_rank),
        peers_(std::move(peers)),
        memory_(state_->segment, state_->memory, *own_, group_rank, peers_),
        writer_(state_->segment, *own_, peers_, state_->memory.ways(), state_->fanout_limits(peers_.size())) {
    readers_.reserve(peers_.size());
    for (PeerEndpoint& peer : peers_) {
      readers_.emplace_back(state_->segment, *own_, peer, &state_->memory,
                            peers_.size() == 1 ? &writer_.arrivals() : nullptr);
    }
    state_->targets.insert(this);
    for (const auto& [rank, status] : state_->lost) OnLost(rank, status);
  }
  ~ShmFanout() override {
    state_->targets.erase(this);
    if (!memory_.Close()) gate_->Close();
    state_->graveyard.Bury(std::move(own_), std::move(peers_));
  }

  Progress TryPublish(SendOperation& operation) override {
    return lost_.ok() ? writer_.TrySend(operation) : FailLost(operation.error);
  }
  Progress TryPublishQuietly(SendOperation& operation) override {
    return lost_.ok() ? writer_.TrySendQuietly(operation) : FailLost(operation.error);
  }
  void Wake() override { writer_.Wake(); }
  Progress TryRecv(int32_t peer, RecvOperation& operation) override {
    if (!lost_.ok()) return FailLost(operation.error);
    return ReaderOf(peer).TryRecv(operation);
  }
  void Prepare(size_t bytes) override { writer_.Prepare(bytes); }
  InlineTerms inline_terms() const override { return {.most_bytes = shm::kPartBytes}; }
  size_t max_bytes() const override { return shm::kPartBytes; }
  MemoryAccess* memory() override { return &memory_; }
  void OnLost(int world_rank, const absl::Status& status) override {
    const bool member = std::any_of(peers_.begin(), peers_.end(), [world_rank](const PeerEndpoint& peer) {
      return peer.address().world_rank == world_rank;
    });
    if (member && lost_.ok()) lost_ = status;
  }

 private:
  size_t IndexOf(int32_t peer) const { return static_cast<size_t>(peer < group_rank_ ? peer : peer - 1); }
  shm::StreamReader& ReaderOf(int32_t peer) { return readers_[IndexOf(peer)]; }
  Progress FailLost(absl::Status& error) const {
    error = lost_;
    return Progress::kFailed;
  }

  std::shared_ptr<ShmTransport::State> state_;
  std::unique_ptr<OwnEndpoint> own_;
  std::unique_ptr<shm::Gate> gate_;
  int group_rank_;
  std::vector<PeerEndpoint> peers_;
  shm::MemberMemory memory_;
  shm::StreamWriter writer_;
  std::vector<shm::StreamReader> readers_;
  absl::Status lost_;
};

absl::Status OtherNode(int world_rank) {
  return absl::UnavailableError("rank " + std::to_string(world_rank) +
                                " lives on another node: shared memory cannot reach it");
}

}  // namespace

ShmTransport::ShmTransport(runtime::Segment& segment, int world_rank, LocalRankOf local_rank_of, ShmOptions options)
    : state_(std::make_shared<State>(segment, world_rank, std::move(local_rank_of), options)) {}

ShmTransport::~ShmTransport() { state_->graveyard.Sweep(); }

bool ShmTransport::Reaches(int world_rank) const {
  return world_rank != state_->world_rank && state_->local_rank_of(world_rank) >= 0;
}

absl::StatusOr<std::unique_ptr<Link>> ShmTransport::Connect(const LinkSpec& spec) {
  const int local_rank = state_->local_rank_of(spec.peer_world_rank);
  if (local_rank < 0) return OtherNode(spec.peer_world_rank);
  state_->graveyard.Sweep();
  const uint64_t own_key = shm::LinkKey(spec, state_->world_rank, spec.peer_world_rank);
  const uint64_t peer_key = shm::LinkKey(spec, spec.peer_world_rank, state_->world_rank);
  COHORT_ASSIGN_OR_RETURN(
      std::unique_ptr<OwnEndpoint> own,
      OwnEndpoint::Create(state_->segment, own_key, shm::kLinkSlots, /*sources=*/1, state_->memory.probe()));
  PeerEndpoint peer(state_->segment, {.world_rank = spec.peer_world_rank,
                                      .local_rank = local_rank,
                                      .key = peer_key,
                                      .slots = shm::kLinkSlots,
                                      .sources = 1});
  return std::unique_ptr<Link>(std::make_unique<ShmLink>(state_, std::move(own), std::move(peer)));
}

absl::StatusOr<std::unique_ptr<Fanout>> ShmTransport::ConnectFanout(const FanoutSpec& spec) {
  const auto members = static_cast<int>(spec.world_ranks.size());
  std::vector<PeerEndpoint> peers;
  for (int member = 0; member < members; ++member) {
    const int world_rank = spec.world_ranks[static_cast<size_t>(member)];
    const int local_rank = state_->local_rank_of(world_rank);
    if (local_rank < 0) return absl::UnimplementedError(std::string(OtherNode(world_rank).message()));
    if (member == spec.group_rank) continue;
    peers.emplace_back(state_->segment, PeerEndpoint::Address{.world_rank = world_rank,
                                                              .local_rank = local_rank,
                                                              .key = shm::FanoutKey(spec, world_rank),
                                                              .slots = shm::kFanoutSlots,
                                                              .sources = static_cast<uint32_t>(members),
                                                              .source = spec.group_rank,
                                                              .own_source = member});
  }
  state_->graveyard.Sweep();
  auto gate = std::make_unique<shm::Gate>(state_->gates);
  OwnEndpoint::Probe probe = state_->memory.probe();
  probe.gate = gate->address();
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<OwnEndpoint> own,
                          OwnEndpoint::Create(state_->segment, shm::FanoutKey(spec, state_->world_rank),
                                              shm::kFanoutSlots, static_cast<uint32_t>(members), probe));
  return std::unique_ptr<Fanout>(
      std::make_unique<ShmFanout>(state_, std::move(own), std::move(gate), spec.group_rank, std::move(peers)));
}

void ShmTransport::OnPeerLost(int world_rank, const absl::Status& status) {
  state_->lost.emplace_back(world_rank, status);
  for (LossTarget* target : state_->targets) target->OnLost(world_rank, status);
}

size_t ShmTransport::unreleased_blocks() const { return state_->graveyard.size(); }

}  // namespace cohort::comm
