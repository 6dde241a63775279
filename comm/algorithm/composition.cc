#include "cohort/comm/algorithm/composition.h"

#include <deque>
#include <initializer_list>
#include <numeric>

namespace cohort::comm {
namespace {

// How many of the call's blocks a part moves per rank.
enum class Amount : uint8_t { kOne, kAll, kOfNode, kOfPlace, kPart };

struct ComposedPart {
  bool between;
  CollectiveKind kind;
  Amount amount;
};

constexpr bool kInside = false;
constexpr bool kBetween = true;

// The parts of a kind in the order in which they are done; none where the scheme does not serve the kind.
std::vector<ComposedPart> PartsOfKind(Scheme scheme, CollectiveKind kind) {
  using enum CollectiveKind;
  const bool leader = scheme == Scheme::kLeader;
  switch (kind) {
    case kAllReduce:
      if (leader) {
        return {{kInside, kReduce, Amount::kOne},
                {kBetween, kAllReduce, Amount::kOne},
                {kInside, kBroadcast, Amount::kOne}};
      }
      return {{kInside, kReduceScatterV, Amount::kPart},
              {kBetween, kAllReduce, Amount::kPart},
              {kInside, kAllGatherV, Amount::kPart}};
    case kBroadcast:
      if (leader) return {{kBetween, kBroadcast, Amount::kOne}, {kInside, kBroadcast, Amount::kOne}};
      return {{kInside, kScatterV, Amount::kPart},
              {kBetween, kBroadcast, Amount::kPart},
              {kInside, kAllGatherV, Amount::kPart}};
    case kReduce:
      if (leader) return {{kInside, kReduce, Amount::kOne}, {kBetween, kReduce, Amount::kOne}};
      return {{kInside, kReduceScatterV, Amount::kPart},
              {kBetween, kReduce, Amount::kPart},
              {kInside, kGatherV, Amount::kPart}};
    case kAllGather:
      if (leader) {
        return {{kInside, kGather, Amount::kOne},
                {kBetween, kAllGather, Amount::kOfNode},
                {kInside, kBroadcast, Amount::kAll}};
      }
      return {{kBetween, kAllGather, Amount::kOne}, {kInside, kAllGather, Amount::kOfPlace}};
    case kReduceScatter:
      if (leader) {
        return {{kInside, kReduce, Amount::kAll},
                {kBetween, kReduceScatter, Amount::kOfNode},
                {kInside, kScatter, Amount::kOne}};
      }
      return {{kInside, kReduceScatter, Amount::kOfPlace}, {kBetween, kReduceScatter, Amount::kOne}};
    case kGather:
      if (leader) return {{kInside, kGather, Amount::kOne}, {kBetween, kGather, Amount::kOfNode}};
      return {};
    case kScatter:
      if (leader) return {{kBetween, kScatter, Amount::kOfNode}, {kInside, kScatter, Amount::kOne}};
      return {};
    case kAllToAll:
      if (leader) return {};
      return {{kInside, kAllToAll, Amount::kOfPlace}, {kBetween, kAllToAll, Amount::kOfNode}};
    case kBarrier:
      if (!leader) return {};
      return {{kInside, kBarrier, Amount::kOne}, {kBetween, kBarrier, Amount::kOne}, {kInside, kBarrier, Amount::kOne}};
    default:
      return {};
  }
}

// The form of a kind that takes blocks of unequal length; the kind itself where it has one block.
CollectiveKind UnequalForm(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kGather:
      return CollectiveKind::kGatherV;
    case CollectiveKind::kScatter:
      return CollectiveKind::kScatterV;
    case CollectiveKind::kAllGather:
      return CollectiveKind::kAllGatherV;
    case CollectiveKind::kReduceScatter:
      return CollectiveKind::kReduceScatterV;
    case CollectiveKind::kAllToAll:
      return CollectiveKind::kAllToAllV;
    default:
      return kind;
  }
}

const AlgorithmInfo* OuterOrNull(const Composition& composition, bool equal) {
  const AlgorithmInfo* outer = composition.outer;
  if (equal || composition.scheme == Scheme::kShared) return outer;
  return FindAlgorithm(UnequalForm(outer->kind), outer->name);
}

double BlocksOf(Amount amount, const NodeShape& shape) {
  switch (amount) {
    case Amount::kOne:
      return 1;
    case Amount::kAll:
      return static_cast<double>(shape.nodes) * shape.largest;
    case Amount::kOfNode:
      return shape.largest;
    case Amount::kOfPlace:
      return shape.nodes;
    case Amount::kPart:
      return 1.0 / shape.largest;
  }
  return 1;
}

}  // namespace

std::vector<Phase> PhasesOf(const AlgorithmInfo& algorithm, const NodeShape& shape, int32_t pieces) {
  const Composition& composition = *algorithm.composition;
  std::vector<Phase> phases;
  for (const ComposedPart& part : PartsOfKind(composition.scheme, algorithm.kind)) {
    Phase phase;
    phase.between = part.between;
    phase.size = part.between ? shape.nodes : shape.largest;
    phase.algorithm = part.between ? composition.outer : &InnerAlgorithm(composition, part.kind);
    phase.blocks = BlocksOf(part.amount, shape);
    // Blocks that belong to ranks are whole in their parts; others are in the pieces of the call's block.
    if (!HasBlockPerRank(part.kind)) {
      phase.pieces = part.amount == Amount::kPart  ? (pieces + shape.largest - 1) / shape.largest
                     : part.amount == Amount::kAll ? pieces * shape.nodes * shape.largest
                                                   : pieces;
    }
    phases.push_back(phase);
  }
  return phases;
}

const AlgorithmInfo& InnerAlgorithm(const Composition& composition, CollectiveKind kind) {
  const AlgorithmInfo* named = FindAlgorithm(kind, composition.inner);
  return named != nullptr ? *named : *FindAlgorithm(kind, "flat");
}

const AlgorithmInfo& OuterAlgorithm(const Composition& composition, const Placement& placement) {
  return *OuterOrNull(composition, placement.shape().equal());
}

std::vector<AlgorithmInfo> MakeCompositions(std::span<const AlgorithmInfo> registered) {
  static auto& kept = *new std::deque<Composition>();  // lives as long as the process: AlgorithmInfo points to it
  const auto can_be_part = [](const AlgorithmInfo& info, CollectiveKind kind) {
    return info.kind == kind && !info.traits.single_copy && !info.traits.power_of_two;
  };
  std::vector<AlgorithmInfo> compositions;
  for (int k = 1; k < kCollectiveKinds; ++k) {
    const auto kind = static_cast<CollectiveKind>(k);
    for (const auto& [scheme, name] : {std::pair{Scheme::kLeader, "leader:"}, std::pair{Scheme::kShared, "shared:"}}) {
      const std::vector<ComposedPart> parts = PartsOfKind(scheme, kind);
      CollectiveKind inner_kind = kind;
      CollectiveKind outer_kind = kind;
      for (size_t i = parts.size(); i-- > 0;) (parts[i].between ? outer_kind : inner_kind) = parts[i].kind;
      for (const AlgorithmInfo& inner : registered) {
        if (parts.empty() || !can_be_part(inner, inner_kind)) continue;
        for (const AlgorithmInfo& outer : registered) {
          if (outer.kind != outer_kind || outer.traits.single_copy) continue;
          kept.push_back({scheme, name + std::string(inner.name) + "+" + std::string(outer.name), inner.name, &outer});
          AlgorithmInfo info{kind, kept.back().name, /*id=*/0, nullptr, nullptr, {}};
          info.traits.pipelined = !HasBlockPerRank(kind) && (inner.traits.pipelined || outer.traits.pipelined);
          info.composition = &kept.back();
          compositions.push_back(info);
        }
      }
    }
  }
  return compositions;
}

absl::Status CheckComposition(const AlgorithmInfo& algorithm, const NodeShape& shape) {
  const Composition& composition = *algorithm.composition;
  const auto refused = [&](const std::string& why) {
    return absl::InvalidArgumentError(std::string(Name(algorithm.kind)) + " algorithm \"" +
                                      std::string(algorithm.name) + "\" " + why);
  };
  if (shape.nodes == 0) return refused("needs to know which ranks share a host");
  if (!shape.two_levels()) {
    return refused("needs several hosts, and several ranks on one of them; this group has " +
                   std::to_string(shape.nodes) + " hosts with at most " + std::to_string(shape.largest) + " ranks");
  }
  const std::string nodes =
      "this group has " + std::to_string(shape.smallest) + " to " + std::to_string(shape.largest) + " ranks on a host";
  if (composition.scheme == Scheme::kShared && !shape.equal()) {
    return refused("needs equally many ranks on every host, and " + nodes);
  }
  const AlgorithmInfo* outer = OuterOrNull(composition, shape.equal());
  if (outer == nullptr) {
    return refused("needs equally many ranks on every host, because " + std::string(composition.outer->name) +
                   " has no form for blocks of unequal length, and " + nodes);
  }
  return CheckRequirements(*outer, shape.nodes);
}

}  // namespace cohort::comm
