#include "cohort/runtime/engine/cpu_spread.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "cohort/runtime/segment/agent_protocol.h"

namespace cohort::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks; a move needs two that agree.
constexpr std::chrono::milliseconds kInterval{5};
constexpr int kMostCpus = 1024;
constexpr uint64_t kKey = 0x6461'6572'7073'7570;  // of the block in the ranks' directories

struct Mask {
  alignas(cpu_set_t) unsigned char bytes[CPU_ALLOC_SIZE(kMostCpus)] = {};
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(bytes); }
};

std::vector<int> CpusOf(Mask& mask) {
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(static_cast<size_t>(cpu), sizeof mask.bytes, mask.set())) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

int BetterCpu(std::span<const int> cpu_of_rank, int own, std::span<const int> allowed) {
  const int mine = cpu_of_rank[static_cast<size_t>(own)];
  if (mine < 0) return -1;
  const auto later = cpu_of_rank.subspan(static_cast<size_t>(own) + 1);
  if (std::find(later.begin(), later.end(), mine) != later.end()) return -1;
  const auto ranks_on = [&](int cpu) { return std::count(cpu_of_rank.begin(), cpu_of_rank.end(), cpu); };
  int best = -1;
  for (const int cpu : allowed) {
    if (best < 0 || ranks_on(cpu) < ranks_on(best)) best = cpu;
  }
  return best >= 0 && ranks_on(mine) >= ranks_on(best) + 2 ? best : -1;
}

CpuSpread::CpuSpread(Segment* segment, bool shared)
    : segment_(segment),
      others_(static_cast<size_t>(segment->local_ranks())),
      cpus_(others_.size(), -1),
      next_look_(shared ? Clock::time_point::min() : Clock::time_point::max()) {}

CpuSpread::~CpuSpread() {
  if (own_ == nullptr) return;
  // Others may be reading the block: it stays until the segment goes.
  own_->store(-1, std::memory_order_relaxed);
}

bool CpuSpread::Announce() {
  if (own_ != nullptr) return true;
  const absl::StatusOr<SegmentBlock> block = segment_->Allocate(sizeof(Whereabouts));
  if (!block.ok()) return false;
  const absl::StatusOr<void*> data = segment_->Map(*block);
  if (!data.ok() || !segment_->Publish(kKey, *block).ok()) return false;
  own_ = new (*data) Whereabouts(-1);
  return true;
}

void CpuSpread::Update() {
  for (size_t rank = 0; rank < others_.size(); ++rank) {
    const auto local = static_cast<int>(rank);
    if (others_[rank] == nullptr) {
      const std::optional<SegmentBlock> block = segment_->LookUp(local, kKey);
      SegmentBlock around;
      if (!block.has_value() || block->bytes < sizeof(Whereabouts) || block->offset % alignof(Whereabouts) != 0)
        continue;
      const absl::StatusOr<void*> data = segment_->MapNamed(*block, &around);
      if (!data.ok()) continue;
      others_[rank] = static_cast<const Whereabouts*>(*data);
    }
    const bool here = segment_->control(local).state.load(std::memory_order_relaxed) == kRankAttached;
    cpus_[rank] = here ? others_[rank]->load(std::memory_order_relaxed) : -1;
  }
}

void CpuSpread::LookNow(Clock::time_point now) {
  next_look_ = now + kInterval;
  const int own = segment_->local_rank();
  const int cpu = sched_getcpu();
  Mask before;
  if (own < 0 || cpu < 0 || !Announce() || sched_getaffinity(0, sizeof before.bytes, before.set()) != 0) {
    next_look_ = Clock::time_point::max();
    return;
  }
  own_->store(cpu, std::memory_order_relaxed);
  Update();
  const int better = BetterCpu(cpus_, own, CpusOf(before));
  if (better != std::exchange(wish_, better) || better < 0) return;
  wish_ = -1;
  Mask there;
  CPU_SET_S(static_cast<size_t>(better), sizeof there.bytes, there.set());
  if (sched_setaffinity(0, sizeof there.bytes, there.set()) != 0) return;
  own_->store(better, std::memory_order_relaxed);
  if (sched_setaffinity(0, sizeof before.bytes, before.set()) == 0) return;
  // The CPUs of the cpuset have changed meanwhile: the kernel cuts a mask of all to those that there are.
  Mask all;
  std::memset(all.bytes, 0xff, sizeof all.bytes);
  (void)sched_setaffinity(0, sizeof all.bytes, all.set());
  next_look_ = Clock::time_point::max();
}

}  // namespace cohort::runtime
