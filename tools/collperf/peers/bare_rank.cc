// A rank of the bare pair in a comparison: each collective of two ranks as the steps that it cannot do without. Where
// there are several ways to carry them out, each is tried before the first call at a new point, and the quickest kept.
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "tools/collperf/peers/bare_pair.h"
#include "tools/measure/clock.h"
#include "tools/measure/system_rank.h"

namespace cohort::collperf {
namespace {

using measure::Operation;
using measure::SystemCall;

constexpr size_t kMostWays = 8;
constexpr int kMostTries = 5;  // of each way
constexpr uint64_t kEnoughNs = 100'000'000;
constexpr size_t kWholeAllReduce = 16 << 10;  // up to here both send their whole input, above it a half twice

class Bare final : public measure::SystemRank {
 public:
  Bare(std::unique_ptr<BarePair> pair, int rank) : pair_(std::move(pair)), rank_(rank) {}
  int rank() const override { return rank_; }
  int ranks() const override { return 2; }
  std::string Run(const SystemCall& call) override {
    if (call.operation == Operation::kSendRecv || call.compute_us > 0) return "is not compared here";
    std::optional<int>& way = ways_[static_cast<size_t>(call.variant)];
    if (!way.has_value()) way = QuickestWay(call);
    pair_->UseWay(call.variant == 1, *way);
    Carry(call);
    return "";
  }
  void* Allocate(int variant, int buffer, int64_t bytes) override {
    ways_[static_cast<size_t>(variant)].reset();
    if (variant == 0) return measure::SystemRank::Allocate(variant, buffer, bytes);
    return bytes == 0 ? nullptr : pair_->Window(buffer, static_cast<size_t>(bytes));
  }
  void Release(int variant) override {
    if (variant == 0) return measure::SystemRank::Release(variant);
    pair_->ReleaseWindows();
  }

 private:
  int QuickestWay(const SystemCall& call);
  void Carry(const SystemCall& call);
  void AllReduce(const std::byte* in, std::byte* out, size_t bytes);

  std::unique_ptr<BarePair> pair_;
  const int rank_;
  std::array<std::optional<int>, 2> ways_;  // for private memory and for windows at this point; none: not tried yet
};

// The way whose slower rank is the quickest, by the least of some tries. Swap lets neither rank begin a try before the
// other has ended the one before.
int Bare::QuickestWay(const SystemCall& call) {
  const bool window = call.variant == 1;
  std::array<uint64_t, kMostWays> least;
  least.fill(~uint64_t{0});
  const uint64_t start = measure::Ticks();
  for (int round = 0; round < kMostTries; ++round) {
    const double ns = static_cast<double>(measure::Ticks() - start) * measure::NanosecondsPerTick();
    const auto own = static_cast<uint64_t>(ns);
    // The first round pays for memory that nobody has touched.
    if (std::max(own, pair_->Swap(own)) > kEnoughNs && round > 1) break;
    for (int way = 0; way < pair_->ways(window); ++way) {
      pair_->UseWay(window, way);
      (void)pair_->Swap(0);
      const uint64_t begin = measure::Ticks();
      Carry(call);
      const uint64_t took = measure::Ticks() - begin;
      auto& known = least[static_cast<size_t>(way)];
      known = std::min(known, std::max(took, pair_->Swap(took)));
    }
  }
  return static_cast<int>(std::min_element(least.begin(), least.end()) - least.begin());
}

void Bare::AllReduce(const std::byte* in, std::byte* out, size_t bytes) {
  if (bytes <= kWholeAllReduce) {
    return pair_->Run({.send = in, .send_bytes = bytes, .receive = out, .receive_bytes = bytes, .addend = in});
  }
  const size_t half = bytes / 2 / sizeof(float) * sizeof(float);
  const size_t own = rank_ == 0 ? 0 : half;
  const size_t own_bytes = rank_ == 0 ? half : bytes - half;
  const size_t others = rank_ == 0 ? half : 0;
  const size_t others_bytes = bytes - own_bytes;
  pair_->Run({.send = in + others,
              .send_bytes = others_bytes,
              .receive = out + own,
              .receive_bytes = own_bytes,
              .addend = in + own,
              .twin = pair_->TwinSums() ? out : nullptr});
  if (pair_->TwinSums()) return;
  pair_->Run({.send = out + own, .send_bytes = own_bytes, .receive = out + others, .receive_bytes = others_bytes});
}

void Bare::Carry(const SystemCall& call) {
  const auto* in = reinterpret_cast<const std::byte*>(call.in);
  auto* out = reinterpret_cast<std::byte*>(call.out);
  const size_t bytes = static_cast<size_t>(call.count) * sizeof(float);
  const size_t own = static_cast<size_t>(rank_) * bytes;
  const size_t others = bytes - own;
  const bool is_root = rank_ == call.root;
  BareStep step;
  switch (call.operation) {
    case Operation::kBroadcast:
      step = is_root ? BareStep{.send = in, .send_bytes = bytes} : BareStep{.receive = out, .receive_bytes = bytes};
      break;
    case Operation::kReduce:
      step = is_root ? BareStep{.receive = out, .receive_bytes = bytes, .addend = in}
                     : BareStep{.send = in, .send_bytes = bytes};
      step.one_way_sum = true;
      break;
    case Operation::kAllReduce:
      return AllReduce(in, out, bytes);
    case Operation::kGather:  // the root has its own block to copy
      step = is_root ? BareStep{.receive = out + others,
                                .receive_bytes = bytes,
                                .own_from = in,
                                .own_to = out + own,
                                .own_bytes = bytes}
                     : BareStep{.send = in, .send_bytes = bytes};
      step.taken = 0;
      break;
    case Operation::kScatter:
      step = is_root ? BareStep{.send = in + others,
                                .send_bytes = bytes,
                                .own_from = in + own,
                                .own_to = out,
                                .own_bytes = bytes}
                     : BareStep{.receive = out, .receive_bytes = bytes};
      step.taken = 1;
      break;
    case Operation::kAllGather:
      step = {.send = in,
              .send_bytes = bytes,
              .receive = out + others,
              .receive_bytes = bytes,
              .own_from = in,
              .own_to = out + own,
              .own_bytes = bytes};
      break;
    case Operation::kReduceScatter:
      step = {.send = in + others, .send_bytes = bytes, .receive = out, .receive_bytes = bytes, .addend = in + own};
      break;
    case Operation::kAllToAll:
      step = {.send = in + others,
              .send_bytes = bytes,
              .receive = out + others,
              .receive_bytes = bytes,
              .own_from = in + own,
              .own_to = out + own,
              .own_bytes = bytes};
      break;
    case Operation::kBarrier: {
      const std::byte token{};
      std::byte arrived{};
      return pair_->Run({.send = &token, .send_bytes = 1, .receive = &arrived, .receive_bytes = 1});
    }
    case Operation::kSendRecv:
      return;
  }
  pair_->Run(step);
}

void KeepToCpu(int rank) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || rank-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

int Main(int argc, char** argv) {
  if (argc != 7) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a rank that waits would do so for ever
#ifdef PR_SET_PTRACER
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // the other rank is no ancestor, and reads this one's memory
#endif
  const int rank = std::atoi(argv[6]);
  KeepToCpu(rank);
  auto pair = std::strcmp(argv[1], "sockets") == 0 ? JoinBareSockets(argv[5], rank) : JoinBareMemory(argv[5], rank);
  if (!pair.ok()) {
    std::fprintf(stderr, "%s\n", std::string(pair.status().message()).c_str());
    return 1;
  }
  Bare system(*std::move(pair), rank);
  return measure::Serve(system, argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
}

}  // namespace
}  // namespace cohort::collperf

// bare_rank copies|sockets SESSION RANKS PLACE FOLDER RANK
int main(int argc, char** argv) { return cohort::collperf::Main(argc, argv); }
