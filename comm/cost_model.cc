#include "comm/cost_model.h"

#include <algorithm>

#include "comm/plan/plan.h"

namespace cohort::comm {
namespace {

// Bytes a microsecond.
double Rate(double gigabytes_s) { return gigabytes_s * 1e3; }

// The rate for data of which `footprint` bytes are touched, when caches hold `cache` of them.
double RateOf(double cached_gigabytes_s, double uncached_gigabytes_s, double footprint, double cache) {
  const double beyond = footprint <= cache ? 0 : (footprint - cache) / footprint;
  return Rate(1 / ((1 - beyond) / cached_gigabytes_s + beyond / uncached_gigabytes_s));
}

// A prediction under way: what its terms share.
struct Query {
  const AlgorithmInfo& algorithm;
  const GroupTopology& topology;
  const Tuning& tuning;
  AlgorithmCost cost;
  int32_t pieces;
  double chunk;      // bytes
  double share;      // ranks that take turns on a CPU
  double footprint;  // bytes of the larger rank's buffers

  bool local() const { return topology.nodes <= 1; }
  double cache() const { return static_cast<double>(tuning.cache_bytes) / share; }
  // Of bytes that pass one after another on `path`: no less than what the CPUs have to do for all ranks.
  double Serial(int64_t path, int64_t of_all) const {
    const double cpus = topology.size / share;
    return chunk * std::max(static_cast<double>(path), share > 1 ? static_cast<double>(of_all) / cpus : 0);
  }
};

double Latency(const Query& query, const LevelTuning& level) {
  const auto rounds = static_cast<double>(query.cost.rounds);
  // What waits for one another: rounds, and the pieces of a pipeline behind the first.
  const double waits = rounds + (query.algorithm.traits.pipelined && query.cost.rounds > 0 ? query.pieces - 1 : 0);
  const auto more = static_cast<double>(std::max<int64_t>(0, query.cost.messages - query.cost.rounds));
  return level.alpha_us * rounds + (query.share > 1 ? query.tuning.switch_us * query.share * waits : 0) +
         level.message_us * query.share * more;
}

double DirectData(const Query& query) {
  const DirectTuning& direct = query.tuning.direct;
  const double rate = RateOf(direct.gigabytes_s, direct.uncached_gigabytes_s, query.footprint, query.cache());
  const int64_t path = query.cost.read_critical > 0 ? query.cost.read_critical : query.cost.critical;
  return query.Serial(path, path * query.topology.size) / rate +
         direct.access_us * query.share * static_cast<double>(query.topology.size - 1);
}

double MessageData(const Query& query, const LevelTuning& level) {
  const AlgorithmCost& cost = query.cost;
  if (cost.chunks == 0) return 0;
  const double message =
      query.chunk * static_cast<double>(cost.chunks) / static_cast<double>(std::max<int64_t>(1, cost.messages));
  const double at_once = static_cast<double>(cost.messages) / static_cast<double>(std::max<int64_t>(1, cost.rounds));
  const double crowd = HasRoot(query.algorithm.kind) ? 1 : 1 + level.crowding * std::max(0.0, at_once - 1);
  const double rate = RateOf(level.gigabytes_s, level.uncached_gigabytes_s / crowd, query.footprint, query.cache());
  const double one = std::min(message / Rate(level.copied_gigabytes_s), level.large_us * query.share + message / rate);
  const bool reads = query.local() && cost.read_critical > 0;
  const int64_t path = reads ? cost.read_critical : cost.critical;
  const int64_t others = query.topology.size - 1;
  const int64_t usual = HasRoot(query.algorithm.kind) ? others * query.pieces : path * query.topology.size;
  return one * query.Serial(path, cost.total > 0 ? cost.total : usual) / message;
}

}  // namespace

double PredictMicroseconds(const AlgorithmInfo& algorithm, int32_t pieces, int64_t bytes, const GroupTopology& topology,
                           const Tuning& tuning) {
  const bool local = topology.nodes <= 1;
  const LevelTuning& level = local ? tuning.local : tuning.remote;
  const double blocks = HasBlockPerRank(algorithm.kind) ? topology.size + 1 : 2;
  Query query{.algorithm = algorithm,
              .topology = topology,
              .tuning = tuning,
              .cost = algorithm.cost(
                  {.size = topology.size, .pieces = pieces, .fanout = local && bytes / pieces <= tuning.fanout_bytes}),
              .pieces = pieces,
              .chunk = static_cast<double>(bytes) / pieces,
              .share = std::max(1.0, topology.ranks_per_cpu),
              .footprint = blocks * static_cast<double>(bytes)};
  const int64_t reduced = query.cost.reduced;
  const int64_t by_all = HasRoot(algorithm.kind) ? int64_t{topology.size - 1} * pieces : reduced * topology.size;
  const double arithmetic = query.Serial(reduced, reduced == 0 ? 0 : by_all) / Rate(tuning.reduce_gigabytes_s);
  const double data = algorithm.traits.single_copy ? DirectData(query) : MessageData(query, level);
  return Latency(query, level) + (bytes == 0 ? 0 : data + arithmetic);
}

}  // namespace cohort::comm
