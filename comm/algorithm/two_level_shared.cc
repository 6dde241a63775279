// Two levels with shares: every rank takes a share of the part between the nodes, together with the ranks that have its
// place on the other nodes. Any algorithm between the nodes, any inside them (composition.h).
//
// Every byte crosses the network as often as with leaders, but all of a node's ranks move their share of it at once:
// for large blocks, where one rank alone can't fill the node's NIC, or takes long to copy.
//
//   nodes 0 1 | 2 3, all_reduce, halves a b, flat inside, recursive doubling between:
//   0 <-> 1, 2 <-> 3 (0 and 2 sum up a, 1 and 3 b)    0 <-> 2 (a), 1 <-> 3 (b)    0 <-> 1, 2 <-> 3 (the other half)
//
//   all_reduce       reduce-scatter of m parts inside, all-reduce of each part between, all-gather inside
//   broadcast        scatter of m parts on the root's node, broadcast of each between, all-gather inside
//   reduce           reduce-scatter of m parts inside, reduce of each to the root's node, gather there
//   all_gather       all-gather of one block between, all-gather inside of the N blocks that each rank has then
//   reduce_scatter   reduce-scatter inside of N blocks for each rank, reduce-scatter of one block between
//   all_to_all       exchange inside of what is for each place, exchange between of m blocks for each node
//
// Cost: at most the sum of the parts' rounds and bytes (PhasesOf). The m parts of a block are equal where the pieces
// are a multiple of m. N blocks travel inside the node as N messages, because they lie apart.
// Nodes with equally many ranks, any placement of them, any root. Source: multi-leader collectives (DPML, Bayatpour et
// al., SC 2017); PiP-MColl (arXiv 2305.10612); node-aware all-to-all (Träff and Rougier, EuroMPI 2014).
#include <utility>

#include "cohort/comm/algorithm/composition.h"
#include "cohort/comm/algorithm/embedding.h"

namespace cohort::comm {
namespace {

class Shared {
 public:
  Shared(const Composition& composition, const PlanRequest& request)
      : composition_(composition),
        placement_(*request.placement),
        request_(request),
        builder_(request),
        embedding_(builder_, request),
        node_(placement_.node_of(request.rank)),
        place_(placement_.local_of(request.rank)),
        places_(placement_.shape().largest),
        root_node_(request.root >= 0 ? placement_.node_of(request.root) : -1) {
    inside_ = {.size = places_, .rank = place_, .root = -1, .rank_of = [this](int place) { return At(node_, place); }};
    between_ = {.size = placement_.nodes(), .rank = node_, .root = root_node_, .rank_of = [this](int node) {
                  return At(node, place_);
                }};
  }

  Plan Build() &&;

 private:
  int At(int node, int place) const { return placement_.ranks_on(node)[static_cast<size_t>(place)]; }
  Slice PartOf(const Slice& block, int place) const { return Part(block, place, places_); }
  BlockAt PartsOf(const Slice& block) const {
    return [this, block](int place) { return std::vector<Slice>{PartOf(block, place)}; };
  }
  static BlockAt Only(const Slice& slice) {
    return [slice](int) { return std::vector<Slice>{slice}; };
  }
  // Blocks of the ranks that have `place` on their nodes, in the order of the nodes.
  std::vector<Slice> OfPlace(BufferId buffer, int place) const {
    std::vector<Slice> slices;
    for (int node = 0; node < placement_.nodes(); ++node) {
      slices.push_back({buffer, At(node, place) * request_.pieces, request_.pieces});
    }
    return slices;
  }

  // With the root, if the kind has one, at the root's place.
  void Inside(CollectiveKind kind, const BlockAt& in, const BlockAt& out) {
    Team team = inside_;
    if (IsRooted(kind)) team.root = placement_.local_of(request_.root);
    embedding_.OnBlocks(InnerAlgorithm(composition_, kind), team, in, out, false);
  }
  void BetweenOnRange(const Slice& in, const Slice& out) { embedding_.OnRange(*composition_.outer, between_, in, out); }

  void Reduce();
  void AllGather();
  void ReduceScatter();
  void AllToAll();

  const Composition& composition_;
  const Placement& placement_;
  const PlanRequest request_;
  PlanBuilder builder_;
  Embedding embedding_;
  const int node_;
  const int place_;
  const int places_;  // ranks on each node
  const int root_node_;
  Team inside_;
  Team between_;
};

void Shared::Reduce() {
  const bool at_root = request_.rank == request_.root;
  const Slice own = PartOf(at_root ? builder_.Out() : builder_.In(), place_);
  const Slice sum = at_root ? own : builder_.NewScratchLike(own);
  Inside(CollectiveKind::kReduceScatterV, PartsOf(builder_.In()), Only(sum));
  BetweenOnRange(sum, node_ == root_node_ ? sum : Slice{});
  if (node_ == root_node_) Inside(CollectiveKind::kGatherV, Only(sum), PartsOf(builder_.Out()));
}

void Shared::AllGather() {
  embedding_.OnBlocks(
      *composition_.outer, between_, Only(builder_.In()),
      [&](int node) { return std::vector<Slice>{builder_.Out(At(node, place_))}; }, false);
  Inside(
      CollectiveKind::kAllGather, [&](int) { return OfPlace(BufferId::kOut, place_); },
      [&](int place) { return OfPlace(BufferId::kOut, place); });
}

void Shared::ReduceScatter() {
  const Slice sums = builder_.NewScratch(placement_.nodes());
  const auto sum = [&](int node) { return Slice{sums.buffer, sums.first + node * request_.pieces, request_.pieces}; };
  Inside(
      CollectiveKind::kReduceScatter, [&](int place) { return OfPlace(BufferId::kIn, place); },
      [&](int) {
        std::vector<Slice> slices;
        for (int node = 0; node < placement_.nodes(); ++node) slices.push_back(sum(node));
        return slices;
      });
  embedding_.OnBlocks(
      *composition_.outer, between_, [&](int node) { return std::vector<Slice>{sum(node)}; }, Only(builder_.Out()),
      true);
}

void Shared::AllToAll() {
  // The block of the rank at `place` of this node for the rank at this place of `node`.
  const Slice room = builder_.NewScratch(request_.size);
  const auto kept = [&](int node, int place) {
    return Slice{room.buffer, room.first + (node * places_ + place) * request_.pieces, request_.pieces};
  };
  Inside(
      CollectiveKind::kAllToAll, [&](int place) { return OfPlace(BufferId::kIn, place); },
      [&](int place) {
        std::vector<Slice> slices;
        for (int node = 0; node < placement_.nodes(); ++node) slices.push_back(kept(node, place));
        return slices;
      });
  embedding_.OnBlocks(
      *composition_.outer, between_,
      [&](int node) {
        std::vector<Slice> slices;
        for (int place = 0; place < places_; ++place) slices.push_back(kept(node, place));
        return slices;
      },
      [&](int node) {
        std::vector<Slice> slices;
        for (int place = 0; place < places_; ++place) slices.push_back(builder_.Out(At(node, place)));
        return slices;
      },
      placement_.contiguous());
}

Plan Shared::Build() && {
  const Slice own = PartOf(builder_.Out(), place_);
  switch (request_.kind) {
    case CollectiveKind::kAllReduce:
      Inside(CollectiveKind::kReduceScatterV, PartsOf(builder_.In()), Only(own));
      BetweenOnRange(own, own);
      Inside(CollectiveKind::kAllGatherV, Only(own), PartsOf(builder_.Out()));
      break;
    case CollectiveKind::kBroadcast:
      if (node_ == root_node_) Inside(CollectiveKind::kScatterV, PartsOf(builder_.In()), Only(own));
      BetweenOnRange(node_ == root_node_ ? own : Slice{}, own);
      Inside(CollectiveKind::kAllGatherV, Only(own), PartsOf(builder_.Out()));
      break;
    case CollectiveKind::kReduce:
      Reduce();
      break;
    case CollectiveKind::kAllGather:
      AllGather();
      break;
    case CollectiveKind::kReduceScatter:
      ReduceScatter();
      break;
    default:
      AllToAll();
  }
  return std::move(builder_).Build();
}

}  // namespace

Plan BuildShared(const Composition& composition, const PlanRequest& request) {
  return Shared(composition, request).Build();
}

}  // namespace cohort::comm
