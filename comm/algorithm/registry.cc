#include "comm/algorithm/registry.h"

#include <array>
#include <bit>

#include "comm/algorithm/pattern.h"

namespace cohort::comm {

#define COHORT_ALGORITHM(kind, name, function, ...) \
  Plan Build##function(const PlanRequest& request); \
  AlgorithmCost CostOf##function(const CostQuery& query);
#include "comm/algorithm/algorithms.def"
#undef COHORT_ALGORITHM

namespace {

// Consecutive numbers that do not depend on where in the list file a comment stands.
enum AlgorithmNumber : uint16_t {
  kNoAlgorithm = 0,
#define COHORT_ALGORITHM(kind, name, function, ...) kNumberOf##function,
#include "comm/algorithm/algorithms.def"
#undef COHORT_ALGORITHM
};

constexpr std::array kAlgorithms = {
#define COHORT_ALGORITHM(kind, name, function, ...)                                                        \
  AlgorithmInfo{CollectiveKind::kind,        name, kNumberOf##function, Build##function, CostOf##function, \
                AlgorithmTraits{__VA_ARGS__}},
#include "comm/algorithm/algorithms.def"
#undef COHORT_ALGORITHM
};

constexpr bool NamesAreUnique() {
  for (const AlgorithmInfo& a : kAlgorithms) {
    for (const AlgorithmInfo& b : kAlgorithms) {
      if (a.index != b.index && a.kind == b.kind && a.name == b.name) return false;
    }
  }
  return true;
}
static_assert(NamesAreUnique(), "two lines of algorithms.def have the same kind and name");

absl::Status Refused(const AlgorithmInfo& algorithm, const std::string& why) {
  return absl::InvalidArgumentError(std::string(Name(algorithm.kind)) + " algorithm \"" + std::string(algorithm.name) +
                                    "\" " + why);
}

}  // namespace

std::span<const AlgorithmInfo> Algorithms() { return kAlgorithms; }

const AlgorithmInfo* FindAlgorithm(CollectiveKind kind, std::string_view name) {
  for (const AlgorithmInfo& algorithm : kAlgorithms) {
    if (algorithm.kind == kind && algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

const AlgorithmInfo* FindAlgorithm(uint16_t index) {
  return index >= 1 && index <= kAlgorithms.size() ? &kAlgorithms[index - 1u] : nullptr;
}

std::string AlgorithmNames(CollectiveKind kind) {
  std::string names;
  for (const AlgorithmInfo& algorithm : kAlgorithms) {
    if (algorithm.kind != kind) continue;
    if (!names.empty()) names += ", ";
    names += algorithm.name;
  }
  return names;
}

int PartsOf(const AlgorithmInfo& algorithm, int size) {
  if (algorithm.traits.parts_by_rank) return size;
  return algorithm.traits.power_of_two_parts ? FloorPowerOfTwo(size) : 1;
}

absl::Status CheckRequirements(const AlgorithmInfo& algorithm, int size) {
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
  if (HasRoot(request.kind) && (request.root < 0 || request.root >= request.size)) {
    return Refused(algorithm,
                   "needs a root in [0, " + std::to_string(request.size) + "), not " + std::to_string(request.root));
  }
  // Chunk numbers are 32 bits wide, also those of scratch memory.
  const int blocks = HasBlockPerRank(request.kind) ? request.size : 1;
  if (request.pieces < 1 || request.pieces > std::numeric_limits<int32_t>::max() / 4 / blocks) {
    return Refused(algorithm, "cannot cut its block into " + std::to_string(request.pieces) + " pieces");
  }
  if (absl::Status status = CheckRequirements(algorithm, request.size); !status.ok()) return status;
  Plan plan = algorithm.build(request);
  plan.algorithm = algorithm.name;
  return plan;
}

}  // namespace cohort::comm
