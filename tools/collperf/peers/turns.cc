#include "tools/collperf/peers/turns.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cohort/runtime/segment/memory_limits.h"
#include "tools/measure/flag_ping_pong.h"
#include "tools/measure/gate.h"
#include "tools/measure/statistics.h"
#include "tools/measure/text.h"

namespace cohort::collperf {
namespace {

using measure::Action;
using measure::Command;
using measure::Operation;
using measure::SystemSlot;

constexpr int kFewestCalls = 3;
constexpr int kMostCalls = 4000;
constexpr int kTurns = 5;

int TurnsOf(const Options& options) { return options.turns > 0 ? options.turns : kTurns; }

// A contestant under way.
struct Running {
  int slot = 0;
  int variant = 0;
  int calls = 0;
  std::vector<double> samples;
  Contestant contestant;
};

bool Takes(const SystemEntry& system, const Wanted& wanted) {
  const auto& lacks = system.lacks;
  const bool has_it = std::find(lacks.begin(), lacks.end(), wanted.operation) == lacks.end();
  return has_it && (system.is_asynchronous || wanted.compute_us <= 0);
}

std::vector<Running> ContestantsOf(Conductor& conductor, Transport transport, const Wanted& wanted) {
  std::vector<Running> running;
  for (int slot = 0; slot < conductor.systems(); ++slot) {
    const SystemEntry& system = conductor.SystemAt(slot);
    if (!conductor.alive(slot) || !Takes(system, wanted)) continue;
    const bool windows =
        system.has_windows && transport == Transport::kSharedMemory && measure::HasBlocks(wanted.operation);
    for (int variant = windows ? 1 : 0; variant >= 0; --variant) {
      const std::string memory = variant == 1 ? "window" : "private";
      const std::string name = system.role == Role::kOurs ? memory
                               : variant == 1             ? system.name + "-" + memory
                                                          : system.name;
      running.push_back({.slot = slot,
                         .variant = variant,
                         .samples = {},
                         .contestant = {.name = name, .system = &system, .turns = {}}});
    }
  }
  return running;
}

double BytesNeeded(Operation operation, int ranks, int64_t bytes, size_t contestants) {
  double blocks = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const measure::Blocks own = measure::BlocksOf(operation, rank == 0, ranks);
    blocks += own.in + own.out;
  }
  return 1.3 * blocks * static_cast<double>(bytes) * static_cast<double>(contestants);  // and what systems stage
}

bool Fits(double bytes) { return bytes <= 0.6 * static_cast<double>(runtime::AvailableMemory()); }

bool Prepare(Conductor& conductor, const Options& options, Command command, Running* running) {
  SystemSlot& shared = conductor.Shared(running->slot);
  shared.wrong.store(0);
  command.action = Action::kPrepare;
  command.variant = running->variant;
  if (!conductor.Give(running->slot, command).ok()) return false;
  running->contestant.wrong += shared.wrong.load();
  const double estimate_ms = static_cast<double>(shared.estimate_ps.load()) / 1e9;
  const double turn_ms = static_cast<double>(options.point_ms) / TurnsOf(options);
  const double fit = turn_ms / std::max(estimate_ms, 1e-6);
  running->calls = static_cast<int>(std::clamp(fit, double{kFewestCalls}, double{kMostCalls}));
  return true;
}

// The first call after a change of systems is not counted.
bool RunOnce(Conductor& conductor, Command command, Running* running) {
  command.action = Action::kRun;
  command.variant = running->variant;
  command.calls = running->calls + 1;
  if (!conductor.Give(running->slot, command).ok()) return false;
  std::vector<double> samples = conductor.Samples(running->slot, command.calls);
  samples.erase(samples.begin());
  running->samples.insert(running->samples.end(), samples.begin(), samples.end());
  const SystemSlot& shared = conductor.Shared(running->slot);
  running->contestant.turns.push_back({.median_us = measure::Median(samples),
                                       .flag_before_ns = static_cast<double>(shared.flag_before_ps.load()) / 1e3,
                                       .flag_after_ns = static_cast<double>(shared.flag_after_ps.load()) / 1e3});
  return true;
}

void Release(Conductor& conductor, Command command, const Running& running) {
  command.action = Action::kRelease;
  command.variant = running.variant;
  (void)conductor.Give(running.slot, command);
}

// All have their buffers meanwhile; or, where `one_prepared_at_a_time`, only the system that is measured, which
// prepares again in each turn.
void TakeTurns(Conductor& conductor, const Options& options, const Command& command, bool one_prepared_at_a_time,
               std::vector<Running>* running) {
  if (!one_prepared_at_a_time)
    std::erase_if(*running, [&](Running& one) { return !Prepare(conductor, options, command, &one); });
  for (int turn = 0; turn < TurnsOf(options); ++turn) {
    // Each comes first in turn.
    if (!running->empty()) std::rotate(running->begin(), running->begin() + 1, running->end());
    std::erase_if(*running, [&](Running& one) {
      const bool ran =
          (!one_prepared_at_a_time || Prepare(conductor, options, command, &one)) && RunOnce(conductor, command, &one);
      if (one_prepared_at_a_time) Release(conductor, command, one);
      return !ran;
    });
  }
  for (const Running& one : *running) {
    if (!one_prepared_at_a_time) Release(conductor, command, one);
  }
}

}  // namespace

std::string Turn::placement() const {
  if (flag_before_ns <= 0 || flag_after_ns <= 0) return "";
  return std::string(measure::PlacementOf(flag_before_ns, flag_after_ns));
}

void CountOnePlacement(bool cpus_are_shared, PointResult* point) {
  std::map<std::string, int> turns;
  for (const Contestant& contestant : point->contestants) {
    if (contestant.system->role == Role::kFloor) continue;  // bound to CPUs, as not all systems are
    for (const Turn& turn : contestant.turns) {
      const std::string placement = turn.placement();
      if (placement == "near" || placement == "far") ++turns[placement];
    }
  }
  const bool known = !cpus_are_shared && !turns.empty();
  if (known) point->placement = turns["near"] >= turns["far"] ? "near" : "far";
  for (Contestant& contestant : point->contestants) {
    std::vector<double> medians;
    for (Turn& turn : contestant.turns) {
      turn.counts = !known || turn.placement() == point->placement;
      if (turn.counts) medians.push_back(turn.median_us);
    }
    contestant.median_us = measure::Median(medians);
  }
}

const Contestant* PointResult::Find(const std::string& name) const {
  for (const Contestant& contestant : contestants) {
    if (contestant.name == name) return &contestant;
  }
  return nullptr;
}

const Contestant* PointResult::BestPeer(bool only_ucx) const {
  const Contestant* best = nullptr;
  for (const Contestant& contestant : contestants) {
    const bool counts = contestant.system->role == Role::kPeer && (!only_ucx || contestant.system->uses_ucx);
    if (!counts || contestant.median_us <= 0) continue;
    if (best == nullptr || contestant.median_us < best->median_us) best = &contestant;
  }
  return best;
}

double Ratio(const Contestant* ours, const Contestant* theirs) {
  if (ours == nullptr || theirs == nullptr) return 0;
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours->turns.size(), theirs->turns.size()); ++i) {
    const Turn& own = ours->turns[i];
    const Turn& other = theirs->turns[i];
    if (own.counts && other.counts && other.median_us > 0) ratios.push_back(own.median_us / other.median_us);
  }
  return measure::Median(ratios);
}

PointResult MeasurePoint(Conductor& conductor, Transport transport, const Options& options, const Wanted& wanted,
                         std::string* why) {
  PointResult result;
  static_cast<Wanted&>(result) = wanted;
  result.transport = transport;
  result.ranks = conductor.ranks();
  const Operation operation = wanted.operation;
  std::vector<Running> running = ContestantsOf(conductor, transport, wanted);
  const bool one_prepared_at_a_time = !Fits(BytesNeeded(operation, conductor.ranks(), wanted.bytes, running.size()));
  const double needed = BytesNeeded(operation, conductor.ranks(), wanted.bytes, 1);
  if (one_prepared_at_a_time && !Fits(needed)) {
    *why = "a system alone needs " + measure::BytesText(needed) + " of memory";
    return result;
  }
  TakeTurns(conductor, options,
            {.operation = operation,
             .messages = wanted.messages,
             .rewrites = wanted.rewritten,
             .compute_us = wanted.compute_us,
             .bytes = wanted.bytes},
            one_prepared_at_a_time, &running);
  for (Running& one : running) {
    one.contestant.p99_us = measure::Summarize(one.samples).p99;
    result.contestants.push_back(one.contestant);
  }
  CountOnePlacement(conductor.ranks() > sysconf(_SC_NPROCESSORS_ONLN), &result);
  std::sort(result.contestants.begin(), result.contestants.end(), [](const Contestant& a, const Contestant& b) {
    const bool a_is_ours = a.system->role == Role::kOurs;
    return a_is_ours != (b.system->role == Role::kOurs) ? a_is_ours : a.name < b.name;
  });
  return result;
}

}  // namespace cohort::collperf
