// Two levels with leaders: one rank of each node, its leader, takes part between the nodes; inside a node its ranks
// give to their leader and get from it. Any algorithm between the nodes, any inside them (composition.h).
//
// Each block crosses the network between nodes as often as among N ranks instead of p, in as few rounds as among N: for
// small and middling blocks, and where a node's ranks share one NIC. Any placement: nodes with unequally many ranks,
// ranks in any order. A rooted operation's root leads its node; elsewhere a node's lowest rank does.
//
//   nodes 0 1 | 2 3, all_reduce, leaders 0 and 2, binomial inside, recursive doubling between:
//   1 -> 0, 3 -> 2    0 <-> 2    0 -> 1, 2 -> 3        out = (x0 op x1) op (x2 op x3)
//
//   all_reduce       reduce to the leader, all-reduce among leaders, broadcast by the leader
//   broadcast        among leaders, then inside          reduce   inside, then among leaders
//   gather, scatter  likewise, with a node's blocks together among leaders
//   all_gather       gather to the leader, all-gather of the nodes' blocks, broadcast of all
//   reduce_scatter   reduce of all blocks to the leader, reduce-scatter of the nodes' blocks, scatter
//   barrier          barrier inside, among leaders, inside
//
// Cost: at most the sum of the parts' rounds and bytes (PhasesOf), with the parts' formulas for m = the ranks of the
// largest node and for N; equal to it in rounds where nodes are equal powers of two and the inner algorithm is a tree.
// If nodes are unequal or their ranks no ranges, a node's block travels as one message for each of its ranks.
// Any size and root. Source: textbook; as HAN in Open MPI and the SMP-aware collectives of MPICH.
#include <utility>

#include "cohort/comm/algorithm/composition.h"
#include "cohort/comm/algorithm/embedding.h"

namespace cohort::comm {
namespace {

class Leader {
 public:
  Leader(const Composition& composition, const PlanRequest& request)
      : composition_(composition),
        placement_(*request.placement),
        request_(request),
        builder_(request),
        embedding_(builder_, request),
        node_(placement_.node_of(request.rank)),
        ranks_(placement_.ranks_on(node_)),
        leader_(LeaderOf(node_)) {
    inside_ = {.size = static_cast<int>(ranks_.size()),
               .rank = placement_.local_of(request.rank),
               .root = placement_.local_of(leader_),
               .rank_of = [this](int local) { return ranks_[static_cast<size_t>(local)]; }};
    between_ = {.size = placement_.nodes(),
                .rank = node_,
                .root = request.root >= 0 ? placement_.node_of(request.root) : -1,
                .rank_of = [this](int node) { return LeaderOf(node); }};
  }

  Plan Build() &&;

 private:
  int LeaderOf(int node) const {
    if (request_.root >= 0 && placement_.node_of(request_.root) == node) return request_.root;
    return placement_.ranks_on(node)[0];
  }
  bool leads() const { return request_.rank == leader_; }
  bool alone() const { return ranks_.size() == 1; }
  bool at_root() const { return request_.rank == request_.root; }

  // A collective among the node's ranks, the leader its root where it has one.
  void InsideOnRange(CollectiveKind kind, const Slice& in, const Slice& out) {
    if (!alone()) embedding_.OnRange(InnerAlgorithm(composition_, kind), Team_(kind, inside_), in, out);
  }
  void InsideOnBlocks(CollectiveKind kind, const BlockAt& in, const BlockAt& out) {
    if (!alone()) {
      embedding_.OnBlocks(InnerAlgorithm(composition_, kind), Team_(kind, inside_), in, out, placement_.contiguous());
    }
  }
  // Among the leaders.
  void BetweenOnRange(const Slice& in, const Slice& out) {
    if (leads()) embedding_.OnRange(OuterAlgorithm(composition_, placement_), between_, in, out);
  }
  void BetweenOnBlocks(const BlockAt& in, const BlockAt& out) {
    if (!leads()) return;
    embedding_.OnBlocks(OuterAlgorithm(composition_, placement_), between_, in, out,
                        placement_.contiguous() && placement_.shape().equal());
  }
  static Team Team_(CollectiveKind kind, Team team) {
    if (!IsRooted(kind)) team.root = -1;
    return team;
  }

  // Room for `blocks` blocks, the k-th of them, and the k-th of the ranks' blocks in the caller's buffer.
  BlockAt Room(int blocks) {
    const Slice room = builder_.NewScratch(blocks);
    return [this, room](int k) -> std::vector<Slice> {
      return {{room.buffer, room.first + k * request_.pieces, request_.pieces}};
    };
  }
  std::vector<Slice> BlocksOfNode(BufferId buffer, int first, int node) const;

  void AllGather();
  void ReduceScatter();
  void Gather();
  void Scatter();

  const Composition& composition_;
  const Placement& placement_;
  const PlanRequest request_;
  PlanBuilder builder_;
  Embedding embedding_;
  const int node_;
  const std::span<const int> ranks_;
  const int leader_;
  Team inside_;
  Team between_;
};

// The blocks of a node's ranks in a buffer of all blocks that begins at chunk `first`.
std::vector<Slice> Leader::BlocksOfNode(BufferId buffer, int first, int node) const {
  std::vector<Slice> slices;
  for (const int rank : placement_.ranks_on(node)) {
    slices.push_back({buffer, first + rank * request_.pieces, request_.pieces});
  }
  return slices;
}

void Leader::AllGather() {
  const Slice own = builder_.Out(request_.rank);
  if (alone()) {
    builder_.Copy(own, builder_.In());
  } else {
    InsideOnBlocks(
        CollectiveKind::kGather, [&](int) { return std::vector<Slice>{builder_.In()}; },
        [&](int local) { return std::vector<Slice>{builder_.Out(ranks_[static_cast<size_t>(local)])}; });
  }
  BetweenOnBlocks([&](int) { return BlocksOfNode(BufferId::kOut, 0, node_); },
                  [&](int node) { return BlocksOfNode(BufferId::kOut, 0, node); });
  const Slice all = builder_.Out(0, request_.size);
  InsideOnRange(CollectiveKind::kBroadcast, leads() ? all : Slice{}, all);
}

void Leader::ReduceScatter() {
  Slice sums = builder_.In(0, request_.size);  // of the node's ranks
  if (!alone()) {
    const Slice room = leads() ? builder_.NewScratch(request_.size) : Slice{};
    InsideOnRange(CollectiveKind::kReduce, sums, room);
    sums = room;
  }
  std::vector<Slice> mine = {builder_.Out()};
  if (!alone() && leads()) {
    mine.clear();
    for (size_t i = 0; i < ranks_.size(); ++i) mine.push_back(builder_.NewScratch());
  }
  BetweenOnBlocks([&](int node) { return BlocksOfNode(sums.buffer, sums.first, node); }, [&](int) { return mine; });
  InsideOnBlocks(
      CollectiveKind::kScatter, [&](int local) { return std::vector<Slice>{mine[static_cast<size_t>(local)]}; },
      [&](int) { return std::vector<Slice>{builder_.Out()}; });
}

void Leader::Gather() {
  const bool pass_on = leads() && !at_root();
  const BlockAt room = pass_on && !alone() ? Room(static_cast<int>(ranks_.size())) : BlockAt();
  const BlockAt collected = [&](int local) {
    return at_root() ? std::vector<Slice>{builder_.Out(ranks_[static_cast<size_t>(local)])} : room(local);
  };
  InsideOnBlocks(CollectiveKind::kGather, [&](int) { return std::vector<Slice>{builder_.In()}; }, collected);
  if (alone() && at_root()) builder_.Copy(builder_.Out(request_.rank), builder_.In());
  BetweenOnBlocks(
      [&](int) {
        if (alone() && !at_root()) return std::vector<Slice>{builder_.In()};
        std::vector<Slice> blocks;
        for (size_t i = 0; i < ranks_.size(); ++i) blocks.push_back(collected(static_cast<int>(i))[0]);
        return blocks;
      },
      [&](int node) { return BlocksOfNode(BufferId::kOut, 0, node); });
}

void Leader::Scatter() {
  const bool pass_on = leads() && !at_root();
  const BlockAt room = pass_on && !alone() ? Room(static_cast<int>(ranks_.size())) : BlockAt();
  const BlockAt dealt = [&](int local) {
    return at_root() ? std::vector<Slice>{builder_.In(ranks_[static_cast<size_t>(local)])} : room(local);
  };
  BetweenOnBlocks([&](int node) { return BlocksOfNode(BufferId::kIn, 0, node); },
                  [&](int) {
                    if (alone()) return std::vector<Slice>{builder_.Out()};
                    std::vector<Slice> blocks;
                    for (size_t i = 0; i < ranks_.size(); ++i) blocks.push_back(dealt(static_cast<int>(i))[0]);
                    return blocks;
                  });
  InsideOnBlocks(CollectiveKind::kScatter, dealt, [&](int) { return std::vector<Slice>{builder_.Out()}; });
}

Plan Leader::Build() && {
  const Slice in = builder_.In();
  const Slice out = builder_.Out();
  switch (request_.kind) {
    case CollectiveKind::kAllReduce:
      InsideOnRange(CollectiveKind::kReduce, in, leads() ? out : Slice{});
      BetweenOnRange(alone() ? in : out, out);
      InsideOnRange(CollectiveKind::kBroadcast, leads() ? out : Slice{}, out);
      break;
    case CollectiveKind::kBroadcast:
      BetweenOnRange(at_root() ? in : Slice{}, out);
      InsideOnRange(CollectiveKind::kBroadcast, leads() ? out : Slice{}, out);
      break;
    case CollectiveKind::kReduce: {
      const bool room = leads() && !at_root() && !alone();
      const Slice sum = room ? builder_.NewScratch() : alone() ? in : at_root() ? out : Slice{};
      InsideOnRange(CollectiveKind::kReduce, in, sum);
      BetweenOnRange(sum, at_root() ? out : Slice{});
      break;
    }
    case CollectiveKind::kAllGather:
      AllGather();
      break;
    case CollectiveKind::kReduceScatter:
      ReduceScatter();
      break;
    case CollectiveKind::kGather:
      Gather();
      break;
    case CollectiveKind::kScatter:
      Scatter();
      break;
    default:  // barrier
      InsideOnRange(CollectiveKind::kBarrier, {}, {});
      BetweenOnRange({}, {});
      InsideOnRange(CollectiveKind::kBarrier, {}, {});
  }
  return std::move(builder_).Build();
}

}  // namespace

Plan BuildLeader(const Composition& composition, const PlanRequest& request) {
  return Leader(composition, request).Build();
}

}  // namespace cohort::comm
