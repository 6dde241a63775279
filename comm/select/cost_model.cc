#include "cohort/comm/select/cost_model.h"

#include <algorithm>

#include "cohort/comm/plan/plan.h"
#include "cohort/comm/select/composition_cost.h"

namespace cohort::comm {
namespace {

// Bytes a microsecond.
double Rate(double gigabytes_s) { return gigabytes_s * 1e3; }

// The rate for data of which `footprint` bytes are touched, when caches hold `cache` of them.
double RateOf(double cached_gigabytes_s, double uncached_gigabytes_s, double footprint, double cache) {
  const double beyond = footprint <= cache ? 0 : (footprint - cache) / footprint;
  return Rate(1 / ((1 - beyond) / cached_gigabytes_s + beyond / uncached_gigabytes_s));
}

// A prediction under way: what its terms share. Data are counted in chunks.
struct Query {
  const AlgorithmInfo& algorithm;
  const GroupTopology& topology;
  const Tuning& tuning;
  AlgorithmCost cost;
  int32_t pieces;
  double chunk;      // bytes
  double share;      // ranks that take turns on a CPU
  double footprint;  // bytes of the buffers of the rank with most

  bool local() const { return topology.nodes <= 1; }
  bool rooted() const { return IsRooted(algorithm.kind); }
  double cache() const { return static_cast<double>(tuning.cache_bytes) / share; }
  double others() const { return topology.size - 1; }
  // One after another along the slowest path.
  double Path() const {
    return static_cast<double>(local() && cost.read_critical > 0 ? cost.read_critical : cost.critical);
  }
  // The share of a rank's peers that are on other hosts, which is that of its messages where it has some for all.
  double FarShare() const {
    if (topology.largest_node <= 1 || topology.size <= topology.nodes) return 1;
    return (topology.size - static_cast<double>(topology.size) / topology.nodes) / others();
  }
  // Received by all ranks together.
  double Total() const {
    if (cost.total > 0) return static_cast<double>(cost.total);
    return rooted() ? others() * pieces : Path() * topology.size;
  }
  // Work that takes `path` one after another takes no less than all CPUs' work for it, if ranks have to take turns.
  double Shared(double path, double total) const {
    return share > 1 ? std::max(path, total * share / topology.size) : path;
  }
};

double Latency(const Query& query, const LevelTuning& level) {
  const AlgorithmCost& cost = query.cost;
  const auto rounds = static_cast<double>(cost.rounds);
  const auto messages = static_cast<double>(cost.messages);
  const double path = level.alpha_us * rounds + level.message_us * std::max(0.0, messages - rounds);
  if (query.share <= 1) return path;
  // A rank that waits leaves its CPU to others, so all messages' work bounds the time whatever waits for what.
  const double total =
      cost.chunks > 0 ? query.Total() * messages / static_cast<double>(cost.chunks) : messages * query.topology.size;
  const double work = level.message_us * total * query.share / query.topology.size;
  // The number of waits for one another: rounds, and the pieces of a pipeline behind the first.
  const double waits = rounds + (query.algorithm.traits.pipelined && cost.rounds > 0 ? query.pieces - 1 : 0);
  return std::max(path, work) + level.switch_us * query.share * waits;
}

// The level of one host, for the memory that the buffers lie in.
LevelTuning LocalTuning(const GroupTopology& topology, const Tuning& tuning) {
  LevelTuning local = tuning.local;
  if (topology.near_caches && !topology.windows) {
    local.copied_gigabytes_s = tuning.near.copied_gigabytes_s;
    local.large_us = tuning.near.large_us;
    local.gigabytes_s = tuning.near.gigabytes_s;
    local.uncached_gigabytes_s = tuning.near.uncached_gigabytes_s;
  }
  if (!topology.windows) return local;
  local.large_us = tuning.window.large_us;
  local.gigabytes_s = tuning.window.large_gigabytes_s;
  local.uncached_gigabytes_s = tuning.window.large_uncached_gigabytes_s;
  return local;
}

double DirectData(const Query& query) {
  const DirectTuning& direct = query.topology.windows ? query.tuning.window.direct : query.tuning.direct;
  const double rate = RateOf(direct.gigabytes_s, direct.uncached_gigabytes_s, query.footprint, query.cache());
  return query.chunk * query.Shared(query.Path(), query.Path() * query.topology.size) / rate +
         direct.access_us * query.share * static_cast<double>(query.cost.accesses);
}

// Between hosts, the chunks that pass a port one after another, or those that a CPU sends and receives.
double SerialChunks(const Query& query, const LevelTuning& level) {
  const auto busiest = static_cast<double>(query.cost.chunks);
  // Sent and received by the rank with most, which has no less than the mean.
  const double handled =
      query.rooted()
          ? std::max({busiest, std::min(2.0, query.others()) * query.pieces, 2 * query.Total() / query.topology.size})
          : 2 * busiest;
  return std::max(query.Path(), level.cpu_share * query.Shared(handled, 2 * query.Total()));
}

// The time of a chunk in messages of its level.
double ChunkTime(const Query& query, const LevelTuning& level) {
  const AlgorithmCost& cost = query.cost;
  const double message =
      query.chunk * static_cast<double>(cost.chunks) / static_cast<double>(std::max<int64_t>(1, cost.messages));
  const double rate = RateOf(level.gigabytes_s, level.uncached_gigabytes_s, query.footprint, query.cache());
  const double one = std::min(message / Rate(level.copied_gigabytes_s), level.large_us * query.share + message / rate);
  return one * query.chunk / message;
}

// In shared memory receivers copy one chunk after another. The root of a gather moves its own block too, after the
// others have been sent to it.
double LocalData(const Query& query) {
  const LevelTuning level = LocalTuning(query.topology, query.tuning);
  const double chunk = ChunkTime(query, level);
  const bool gathers = EqualBlocksForm(query.algorithm.kind) == CollectiveKind::kGather;
  const double rate = RateOf(level.gigabytes_s, level.uncached_gigabytes_s, query.footprint, query.cache());
  const double own = gathers ? query.pieces * query.chunk / rate : 0;
  return query.Shared(chunk * query.Path() + own, chunk * query.Total());
}

double MessageData(const Query& query) {
  if (query.cost.chunks == 0) return 0;
  if (query.local()) return LocalData(query);
  const LevelTuning& remote = query.tuning.remote;
  const double serial = SerialChunks(query, remote);
  const double far = query.FarShare();
  return serial *
         (far * ChunkTime(query, remote) + (1 - far) * ChunkTime(query, LocalTuning(query.topology, query.tuning)));
}

}  // namespace

double PredictMicroseconds(const AlgorithmInfo& algorithm, int32_t pieces, int64_t bytes, const GroupTopology& topology,
                           const Tuning& tuning) {
  if (algorithm.composition != nullptr) return PredictComposition(algorithm, pieces, bytes, topology, tuning);
  const bool local = topology.nodes <= 1;
  const LevelTuning& level = local ? tuning.local : tuning.remote;
  const double blocks = HasBlockPerRank(algorithm.kind) ? topology.size + 1 : 2;
  const Query query{
      .algorithm = algorithm,
      .topology = topology,
      .tuning = tuning,
      .cost = algorithm.cost(
          {.size = topology.size, .pieces = pieces, .fanout = local && bytes / pieces <= tuning.fanout_bytes}),
      .pieces = pieces,
      .chunk = static_cast<double>(bytes) / pieces,
      .share = std::max(1.0, topology.ranks_per_cpu),
      .footprint = blocks * static_cast<double>(bytes)};
  const auto reduced = static_cast<double>(query.cost.reduced);
  const double by_all = query.rooted() ? query.others() * pieces : reduced * topology.size;
  const double arithmetic =
      reduced == 0 ? 0 : query.chunk * query.Shared(reduced, by_all) / Rate(tuning.reduce_gigabytes_s);
  const double data = algorithm.traits.single_copy ? DirectData(query) : MessageData(query);
  return Latency(query, level) + (bytes == 0 ? 0 : data + arithmetic);
}

}  // namespace cohort::comm
