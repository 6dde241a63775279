// Programs of made-up jobs, of which one rank may be slow. Their lengths are drawn from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/launcher/verdict/history.h"
#include "tests/launcher/verdict/milliseconds.h"
#include "tests/launcher/verdict/world.h"

namespace cohort::launcher {

// Numbers of one world.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  uint64_t From(uint64_t low, uint64_t high) { return low + engine_() % (high - low + 1); }
  // Within 5 % of it.
  uint64_t About(uint64_t ns) { return ns * From(950, 1050) / 1000; }

 private:
  std::mt19937_64 engine_;
};

// An extra time of one rank, in one step or in every one.
struct Slow {
  uint32_t rank = 0;
  std::optional<uint64_t> step;
  uint64_t ns = 0;
  Activity activity = Activity::kComputes;
};

inline constexpr Activity kActivitiesOfPrograms[] = {Activity::kComputes, Activity::kReads,  Activity::kWrites,
                                                     Activity::kLocks,    Activity::kSleeps, Activity::kSwaps,
                                                     Activity::kStopped};

// Ranks that compute and reduce, several times in a step.
inline History Replicas(Dice* dice, uint32_t ranks, uint64_t steps, const std::optional<Slow>& slow,
                        uint64_t* usual_ns) {
  World world(ranks, (ranks + 1) / 2);
  const uint64_t calls = dice->From(1, 4);
  const uint64_t slow_call = dice->From(0, calls - 1);
  std::vector<uint64_t> works;
  *usual_ns = 0;
  for (uint64_t call = 0; call < calls; ++call) {
    works.push_back(dice->From(1, 20) * kMs);
    *usual_ns += works.back();
  }
  for (uint64_t step = 0; step < steps; ++step) {
    for (uint64_t call = 0; call < calls; ++call) {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        world.Compute(rank, dice->About(works[call]));
        const bool is_slow = slow && rank == slow->rank && call == slow_call && (!slow->step || *slow->step == step);
        if (is_slow) world.Compute(rank, slow->ns, slow->activity);
        world.AllReduce(rank, World::All(ranks), static_cast<int>(call));
      }
    }
  }
  return world.Run();
}

// Stages that hand on what they compute, each of some replicas that reduce at the end of a step.
inline History Grid(Dice* dice, uint32_t stages, uint32_t replicas, uint64_t steps, const std::optional<Slow>& slow,
                    uint64_t* usual_ns) {
  World world(stages * replicas, replicas);
  const uint64_t batches = dice->From(2, 5);
  const uint64_t work_ns = dice->From(2, 10) * kMs;
  *usual_ns = work_ns * (batches + stages - 1);
  for (uint64_t step = 0; step < steps; ++step) {
    for (uint32_t stage = 0; stage < stages; ++stage) {
      std::vector<uint32_t> group;
      for (uint32_t replica = 0; replica < replicas; ++replica) group.push_back(stage * replicas + replica);
      for (uint32_t replica = 0; replica < replicas; ++replica) {
        const uint32_t rank = stage * replicas + replica;
        for (uint64_t batch = 0; batch < batches; ++batch) {
          if (stage > 0) world.Receive(rank, rank - replicas, 1);
          world.Compute(rank, dice->About(work_ns));
          const bool is_slow = slow && rank == slow->rank && (!slow->step || *slow->step == step);
          if (is_slow && batch == batches / 2) world.Compute(rank, slow->ns, slow->activity);
          if (stage + 1 < stages) world.Send(rank, rank + replicas, 2);
        }
        if (replicas > 1) world.AllReduce(rank, group, 3);
        world.AllReduce(rank, World::All(stages * replicas), 4);
      }
    }
  }
  return world.Run();
}

// The same as nodes tell it whose clocks are apart by up to this.
inline void SetClocksApart(Dice* dice, uint64_t most_ns, History* history) {
  std::vector<uint64_t> late_ns;
  for (size_t node = 0; node < history->nodes.size(); ++node) late_ns.push_back(dice->From(0, most_ns));
  for (TracedCall& call : history->calls) {
    call.start_ns += late_ns[call.node];
    call.end_ns += late_ns[call.node];
  }
  for (auto& state : history->states) {
    state.begin_ns += late_ns[state.node];
    state.end_ns += late_ns[state.node];
  }
}

}  // namespace cohort::launcher
