#include "cohort/comm/select/selector.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cohort/comm/select/composition_cost.h"
#include "cohort/comm/select/cost_model.h"
#include "cohort/comm/select/explanation.h"

namespace cohort::comm {
namespace {

// The number of pieces with the least predicted time: what the algorithm needs, doubled while pieces stay long enough.
Choice BestPieces(const AlgorithmInfo& algorithm, int64_t bytes, const GroupTopology& topology, const Tuning& tuning) {
  const int32_t least = PartsOf(algorithm, topology.size, ShapeOf(topology));
  const int64_t piece_bytes = topology.nodes > 1 ? tuning.remote_piece_bytes : tuning.local_piece_bytes;
  Choice best;
  for (int64_t cuts = 1; cuts <= tuning.max_pieces; cuts *= 2) {
    if (cuts > 1 && (!algorithm.traits.pipelined || bytes / (least * cuts) < piece_bytes)) break;
    const auto pieces = static_cast<int32_t>(least * cuts);
    const double time = PredictMicroseconds(algorithm, pieces, bytes, topology, tuning);
    if (best.algorithm == nullptr || time < best.predicted_us) {
      best = {.algorithm = &algorithm, .pieces = pieces, .predicted_us = time};
    }
  }
  return best;
}

// To fold bfloat16 in window memory takes 2.3 times what as many bytes of float32 take (EPYC, 512 KiB, two ranks).
constexpr double kDecodingRate = 0.44;

// BestPieces with what the call's demands cost with this algorithm.
Choice BestFor(const AlgorithmInfo& algorithm, int64_t bytes, const GroupTopology& topology, const Tuning& tuning,
               const Demands& demands) {
  const bool widened = demands.widening > 1 && (demands.staged || !FoldsOnce(algorithm.traits, bytes, topology.size));
  if (!widened && demands.decodes) {
    Tuning decoding = tuning;
    decoding.reduce_gigabytes_s *= kDecodingRate;
    return BestPieces(algorithm, bytes, topology, decoding);
  }
  if (!widened) return BestPieces(algorithm, bytes, topology, tuning);
  Choice choice = BestPieces(algorithm, bytes * demands.widening, topology, tuning);
  const double converted = static_cast<double>(bytes) * (1 + demands.widening) * 2;
  choice.predicted_us += converted * std::max(1.0, topology.ranks_per_cpu) / (tuning.reduce_gigabytes_s * 1e3);
  return choice;
}

// Single-copy algorithms reach into memory of the same host, and into private memory only where messages are slower.
bool ReachesMemory(const GroupTopology& topology) {
  return topology.nodes <= 1 && (topology.windows || !topology.near_caches);
}

bool Fits(const AlgorithmInfo& algorithm, CollectiveKind kind, const GroupTopology& topology, const Demands& demands) {
  return algorithm.kind == kind && CheckRequirements(algorithm, topology.size, ShapeOf(topology)).ok() &&
         (!algorithm.traits.single_copy || ReachesMemory(topology)) &&
         (!demands.rank_order || algorithm.traits.rank_order);
}

void AddFallback(int64_t bytes, const GroupTopology& topology, const Tuning& tuning, const Demands& demands,
                 Choice* choice) {
  if (!choice->algorithm->traits.single_copy) return;
  double best_us = 0;
  for (const AlgorithmInfo& algorithm : Algorithms()) {
    if (algorithm.traits.single_copy || !Fits(algorithm, choice->algorithm->kind, topology, demands)) continue;
    const Choice candidate = BestFor(algorithm, bytes, topology, tuning, demands);
    if (choice->fallback != nullptr && candidate.predicted_us >= best_us) continue;
    choice->fallback = candidate.algorithm;
    choice->fallback_pieces = candidate.pieces;
    best_us = candidate.predicted_us;
  }
}

// The algorithms of the list, and the best compositions of two levels.
std::vector<const AlgorithmInfo*> Candidates(CollectiveKind kind, int64_t bytes, const GroupTopology& topology,
                                             const Tuning& tuning) {
  std::vector<const AlgorithmInfo*> candidates;
  for (const AlgorithmInfo& algorithm : Algorithms()) {
    if (algorithm.kind == kind) candidates.push_back(&algorithm);
  }
  for (const AlgorithmInfo* composition : BestCompositions(kind, bytes, topology, tuning)) {
    candidates.push_back(composition);
  }
  return candidates;
}

absl::StatusOr<Choice> Forced(CollectiveKind kind, int64_t bytes, const GroupTopology& topology, const Tuning& tuning,
                              std::string_view name, const Demands& demands) {
  const AlgorithmInfo* algorithm = FindAlgorithm(kind, name);
  if (algorithm == nullptr) {
    return absl::InvalidArgumentError(std::string(Name(kind)) + " has no algorithm \"" + std::string(name) +
                                      "\"; choose one of " + AlgorithmNames(kind));
  }
  absl::Status status = CheckRequirements(*algorithm, topology.size, ShapeOf(topology));
  if (!status.ok()) return status;
  if (demands.rank_order && !algorithm->traits.rank_order) {
    std::string fit;
    for (const AlgorithmInfo& other : Algorithms()) {
      if (other.kind == kind && other.traits.rank_order) fit += (fit.empty() ? "" : ", ") + std::string(other.name);
    }
    return absl::InvalidArgumentError(std::string(Name(kind)) + " algorithm \"" + std::string(name) +
                                      "\" does not combine in the order of ranks, which order_invariant and functions "
                                      "that do not commute need; choose one of " +
                                      fit);
  }
  Choice choice = BestFor(*algorithm, bytes, topology, tuning, demands);
  AddFallback(bytes, topology, tuning, demands, &choice);
  return choice;
}

// The algorithm that the table's rules name for this call; null where none does.
const AlgorithmInfo* Ruled(CollectiveKind kind, int64_t bytes, const GroupTopology& topology, const Tuning& tuning,
                           const Demands& demands) {
  for (size_t i = tuning.rules.size(); i-- > 0;) {
    const TuningRule& rule = tuning.rules[i];
    if (!rule.Fits(kind, bytes, topology.nodes <= 1)) continue;
    const AlgorithmInfo* algorithm = FindAlgorithm(kind, rule.algorithm);
    if (algorithm != nullptr && Fits(*algorithm, kind, topology, demands)) return algorithm;
  }
  return nullptr;
}

std::string Line(const Choice& choice) {
  char text[128];
  std::snprintf(text, sizeof text, "%-36.*s %6d %-6s %12.2f us", static_cast<int>(choice.algorithm->name.size()),
                choice.algorithm->name.data(), choice.pieces, choice.pieces == 1 ? "piece" : "pieces",
                choice.predicted_us);
  return text;
}

std::string Counted(int64_t number, const char* unit) {
  return std::to_string(number) + " " + unit + (number == 1 ? "" : "s");
}

// A table over lines of at most 110 characters, the later ones indented; reads back as the same table.
std::string Broken(const std::string& table) {
  constexpr size_t kWidth = 110;
  std::string text;
  size_t begin = 0;
  while (table.size() - begin > kWidth) {
    const size_t space = table.rfind(' ', begin + kWidth);
    if (space == std::string::npos || space <= begin) break;  // an item longer than a line
    text.append(table, begin, space - begin).append("\n  ");
    begin = space + 1;
  }
  return text.append(table, begin);
}

// Why an algorithm can't serve such calls; empty where it can.
std::string WhyNot(const AlgorithmInfo& algorithm, const GroupTopology& topology, const Demands& demands) {
  if (const absl::Status fits = CheckRequirements(algorithm, topology.size, ShapeOf(topology)); !fits.ok()) {
    return std::string(fits.message());
  }
  if (algorithm.traits.single_copy && !ReachesMemory(topology)) {
    return std::string(algorithm.name) + (topology.nodes > 1 ? ": on one host only" : ": in windows only, on this CPU");
  }
  if (demands.rank_order && !algorithm.traits.rank_order) {
    return std::string(algorithm.name) + ": combines in another order than that of ranks";
  }
  return "";
}

}  // namespace

absl::StatusOr<Choice> Select(CollectiveKind kind, int64_t bytes, const GroupTopology& topology, const Tuning& tuning,
                              std::string_view forced, const Demands& demands) {
  if (!forced.empty()) return Forced(kind, bytes, topology, tuning, forced, demands);
  Choice best;
  for (const AlgorithmInfo* algorithm : Candidates(kind, bytes, topology, tuning)) {
    if (!Fits(*algorithm, kind, topology, demands)) continue;
    Choice candidate = BestFor(*algorithm, bytes, topology, tuning, demands);
    if (best.algorithm == nullptr || candidate.predicted_us < best.predicted_us) {
      const Choice second = best;
      best = candidate;
      best.runner_up = second.algorithm;
      best.runner_up_us = second.predicted_us;
    } else if (best.runner_up == nullptr || candidate.predicted_us < best.runner_up_us) {
      best.runner_up = candidate.algorithm;
      best.runner_up_us = candidate.predicted_us;
    }
  }
  const AlgorithmInfo* ruled = tuning.rules.empty() ? nullptr : Ruled(kind, bytes, topology, tuning, demands);
  if (ruled != nullptr && ruled != best.algorithm) {
    const Choice predicted = best;
    best = BestFor(*ruled, bytes, topology, tuning, demands);
    best.runner_up = predicted.algorithm;
    best.runner_up_us = predicted.predicted_us;
  }
  best.ruled = ruled != nullptr;
  if (best.algorithm == nullptr) {
    return absl::UnimplementedError("no algorithm serves " + std::string(Name(kind)));
  }
  AddFallback(bytes, topology, tuning, demands, &best);
  return best;
}

absl::StatusOr<Explanation> ExplainAlternatives(CollectiveKind kind, int64_t bytes, const GroupTopology& topology,
                                                const Tuning& tuning, const Demands& demands) {
  const absl::StatusOr<Choice> choice = Select(kind, bytes, topology, tuning, {}, demands);
  if (!choice.ok()) return choice.status();
  Explanation explanation{*choice, {}};
  for (const AlgorithmInfo* algorithm : Candidates(kind, bytes, topology, tuning)) {
    Alternative& one = explanation.alternatives.emplace_back();
    one.algorithm = algorithm;
    one.why_not = WhyNot(*algorithm, topology, demands);
    if (one.why_not.empty()) one.choice = BestFor(*algorithm, bytes, topology, tuning, demands);
    one.chosen = algorithm == choice->algorithm;
    one.runner_up = algorithm == choice->runner_up;
    one.fallback = algorithm == choice->fallback;
  }
  return explanation;
}

std::string ExplainSelection(CollectiveKind kind, int64_t bytes, const GroupTopology& topology, const Tuning& tuning,
                             const Demands& demands) {
  const absl::StatusOr<Explanation> explained = ExplainAlternatives(kind, bytes, topology, tuning, demands);
  if (!explained.ok()) return std::string(explained.status().message());
  std::string text = std::string(Name(kind)) + " of " + Counted(bytes, "byte") + " among " +
                     Counted(topology.size, "rank") + " on " + Counted(topology.nodes, "host") +
                     (topology.windows ? ", in windows" : "") + ", predicted" +
                     (explained->choice.ruled ? " (a rule of the table decides)" : "") + ":\n";
  for (const Alternative& one : explained->alternatives) {
    text += one.chosen ? "  * " : "    ";
    text += one.why_not.empty() ? Line(one.choice) : one.why_not;
    if (one.runner_up) text += ", the runner-up";
    if (one.fallback) text += ", where members can't reach each other's memory, or only slower";
    text += "\n";
  }
  return text + "table: " + Broken(tuning.ToString()) + "\n";
}

// For calls that must have the same bits however many ranks share a CPU and wherever their buffers lie.
GroupTopology Selector::TopologyFor(const Demands& demands) const {
  GroupTopology topology = topology_;
  if (demands.built_in) {
    topology.ranks_per_cpu = 1;
    topology.windows = false;
  }
  return topology;
}

std::string Selector::Explain(CollectiveKind kind, int64_t bytes, const Demands& demands) const {
  return ExplainSelection(kind, bytes, TopologyFor(demands), TuningFor(demands), demands);
}

uint64_t Selector::HashOf(CollectiveKind kind, int64_t bytes, std::string_view forced, const Demands& demands) {
  const uint64_t asked = (demands.rank_order ? 1u : 0u) + (demands.built_in ? 2u : 0u) + (demands.staged ? 4u : 0u) +
                         (demands.decodes ? 8u : 0u) + 16 * static_cast<uint64_t>(demands.widening);
  const uint64_t named = forced.empty() ? 0 : forced.size() * 257 + static_cast<unsigned char>(forced.front());
  return (((static_cast<uint64_t>(bytes) * 32 + static_cast<uint64_t>(kind)) * 128 + asked) ^ (named << 48)) *
         0x9e3779b97f4a7c15u;
}

absl::StatusOr<Choice> Selector::Choose(CollectiveKind kind, int64_t bytes, std::string_view forced,
                                        const Demands& demands) {
  const uint64_t hash = HashOf(kind, bytes, forced, demands);
  const auto set_of = [&] { return &entries_[(hash >> 40) % (entries_.size() / kWays) * kWays]; };
  Entry* set = set_of();
  for (size_t way = 0; way < kWays; ++way) {
    const Entry& entry = set[way];
    if (entry.kind == kind && entry.bytes == bytes && entry.forced == forced && entry.demands == demands) {
      return entry.choice;
    }
  }
  absl::StatusOr<Choice> choice = Select(kind, bytes, TopologyFor(demands), TuningFor(demands), forced, demands);
  if (!choice.ok()) return choice;
  // Calls that push one another out want more room.
  if (++misses_ > 2 * entries_.size() && entries_.size() < kMostEntries) {
    entries_.assign(4 * entries_.size(), Entry());
    misses_ = 0;
    set = set_of();
  }
  std::rotate(set, set + kWays - 1, set + kWays);
  // The name of the algorithm outlives this memory, what the caller passed may not.
  set[0] = {.kind = kind,
            .bytes = bytes,
            .demands = demands,
            .forced = forced.empty() ? std::string_view() : choice->algorithm->name,
            .choice = *choice};
  return choice;
}

}  // namespace cohort::comm
