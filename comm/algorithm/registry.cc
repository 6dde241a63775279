#include "cohort/comm/algorithm/registry.h"

#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <vector>

#include "cohort/comm/algorithm/composition.h"
#include "cohort/comm/algorithm/pattern.h"

namespace cohort::comm {

#define COHORT_ALGORITHM(kind, name, function, ...) \
  Plan Build##function(const PlanRequest& request); \
  AlgorithmCost CostOf##function(const CostQuery& query);
#include "cohort/comm/algorithm/algorithms.def"
#undef COHORT_ALGORITHM

namespace {

// FNV-1a of the kind's number and the name, folded to 16 bits; never 0.
constexpr uint16_t IdOf(CollectiveKind kind, std::string_view name) {
  uint32_t hash = (2166136261u ^ static_cast<uint32_t>(kind)) * 16777619u;
  for (const char letter : name) hash = (hash ^ static_cast<uint8_t>(letter)) * 16777619u;
  const auto id = static_cast<uint16_t>(hash ^ (hash >> 16));
  return id == 0 ? uint16_t{1} : id;
}

constexpr std::array kAlgorithms = {
#define COHORT_ALGORITHM(kind, name, function, ...)                                                           \
  AlgorithmInfo{                                                                                              \
      CollectiveKind::kind,        name, IdOf(CollectiveKind::kind, name), Build##function, CostOf##function, \
      AlgorithmTraits{__VA_ARGS__}},
#include "cohort/comm/algorithm/algorithms.def"
#undef COHORT_ALGORITHM
};

constexpr bool IdsAreUnique() {
  for (size_t i = 0; i < kAlgorithms.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (kAlgorithms[i].id == kAlgorithms[k].id) return false;
    }
  }
  return true;
}
static_assert(IdsAreUnique(), "two lines of algorithms.def have the same kind and name, or names with equal hashes");

struct Registry {
  std::vector<AlgorithmInfo> all;     // those of the list, then the compositions
  std::map<uint16_t, size_t> places;  // in `all`, by id

  Registry() : all(kAlgorithms.begin(), kAlgorithms.end()) {
    for (size_t i = 0; i < all.size(); ++i) places.emplace(all[i].id, i);
    for (AlgorithmInfo& composition : MakeCompositions(kAlgorithms)) {
      composition.id = IdOf(composition.kind, composition.name);
      // There are hundreds: some hashes are equal. Every process makes them in the same order.
      while (composition.id == 0 || !places.emplace(composition.id, all.size()).second) ++composition.id;
      all.push_back(composition);
    }
  }
};

const Registry& TheRegistry() {
  static const auto& registry = *new Registry();
  return registry;
}

absl::Status Refused(const AlgorithmInfo& algorithm, const std::string& why) {
  return absl::InvalidArgumentError(std::string(Name(algorithm.kind)) + " algorithm \"" + std::string(algorithm.name) +
                                    "\" " + why);
}

}  // namespace

std::span<const AlgorithmInfo> AllAlgorithms() { return TheRegistry().all; }

std::span<const AlgorithmInfo> Algorithms() { return AllAlgorithms().first(kAlgorithms.size()); }

const AlgorithmInfo* FindAlgorithm(CollectiveKind kind, std::string_view name) {
  const bool composed = name.find(':') != std::string_view::npos;
  for (const AlgorithmInfo& algorithm : composed ? AllAlgorithms() : Algorithms()) {
    if (algorithm.kind == kind && algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

const AlgorithmInfo* FindAlgorithm(uint16_t id) {
  const Registry& registry = TheRegistry();
  const auto found = registry.places.find(id);
  return found == registry.places.end() ? nullptr : &registry.all[found->second];
}

std::string AlgorithmNames(CollectiveKind kind) {
  std::string names;
  const AlgorithmInfo* composed = nullptr;
  for (const AlgorithmInfo& algorithm : AllAlgorithms()) {
    if (algorithm.kind != kind) continue;
    if (algorithm.composition != nullptr) {
      composed = &algorithm;
      break;
    }
    if (!names.empty()) names += ", ";
    names += algorithm.name;
  }
  if (composed != nullptr) names += ", or across hosts SCHEME:INNER+OUTER, such as " + std::string(composed->name);
  return names;
}

int PartsOf(const AlgorithmInfo& algorithm, int size, const NodeShape& shape) {
  if (algorithm.composition != nullptr) {
    int64_t parts = 1;
    for (const Phase& phase : PhasesOf(algorithm, shape, 1)) {
      if (HasBlockPerRank(algorithm.kind)) break;
      const int64_t shares = phase.blocks < 1 ? shape.largest : 1;
      parts = std::lcm(parts, shares * PartsOf(*phase.algorithm, phase.size));
    }
    // Parts need not be equal: where there is no small number that makes them so, that of the outer algorithm does.
    return parts <= size ? static_cast<int>(parts) : PartsOf(*algorithm.composition->outer, shape.nodes);
  }
  if (algorithm.traits.parts_by_rank) return size;
  return algorithm.traits.power_of_two_parts ? FloorPowerOfTwo(size) : 1;
}

absl::Status CheckRequirements(const AlgorithmInfo& algorithm, int size, const NodeShape& shape) {
  if (algorithm.composition != nullptr) return CheckComposition(algorithm, shape);
  const AlgorithmTraits& traits = algorithm.traits;
  const auto here = [size] { return ", and this group has " + std::to_string(size); };  // rarely needed
  if (traits.power_of_two && !std::has_single_bit(static_cast<unsigned>(size))) {
    return Refused(algorithm, "needs a power of two of ranks" + here());
  }
  if (size < traits.min_ranks) {
    return Refused(algorithm, "needs at least " + std::to_string(traits.min_ranks) + " ranks" + here());
  }
  if (size > traits.max_ranks) {
    return Refused(algorithm, "serves at most " + std::to_string(traits.max_ranks) + " ranks" + here());
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> BuildPlan(const AlgorithmInfo& algorithm, const PlanRequest& request) {
  if (request.kind != algorithm.kind) {
    return Refused(algorithm, "cannot serve " + std::string(Name(request.kind)));
  }
  if (request.size < 1 || request.rank < 0 || request.rank >= request.size) {
    return Refused(algorithm, "needs a rank in [0, size), not rank " + std::to_string(request.rank) + " of " +
                                  std::to_string(request.size));
  }
  if (IsRooted(request.kind) && (request.root < 0 || request.root >= request.size)) {
    return Refused(algorithm,
                   "needs a root in [0, " + std::to_string(request.size) + "), not " + std::to_string(request.root));
  }
  // Chunk numbers are 32 bits wide, also those of scratch memory.
  const int blocks = HasBlockPerRank(request.kind) ? request.size : 1;
  if (request.pieces < 1 || request.pieces > std::numeric_limits<int32_t>::max() / 4 / blocks) {
    return Refused(algorithm, "cannot cut its block into " + std::to_string(request.pieces) + " pieces");
  }
  const NodeShape shape = request.placement == nullptr ? NodeShape() : request.placement->shape();
  if (absl::Status status = CheckRequirements(algorithm, request.size, shape); !status.ok()) return status;
  if (request.placement != nullptr && request.placement->size() != request.size) {
    return Refused(algorithm, "needs the nodes of " + std::to_string(request.size) + " ranks, not of " +
                                  std::to_string(request.placement->size()));
  }
  const Composition* composition = algorithm.composition;
  Plan plan = composition == nullptr                   ? algorithm.build(request)
              : composition->scheme == Scheme::kLeader ? BuildLeader(*composition, request)
                                                       : BuildShared(*composition, request);
  plan.algorithm = algorithm.name;
  return plan;
}

}  // namespace cohort::comm
