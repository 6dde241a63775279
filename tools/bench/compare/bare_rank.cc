// A rank of the bare pair in a comparison: each collective of two ranks as the steps that it cannot do without. Where
// there are several ways to carry them out, each is tried at a new point, and the quickest is kept.
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "cohort/comm/transport/stream_copy.h"
#include "tools/bench/compare/bare_pair.h"
#include "tools/bench/compare/system.h"
#include "tools/measure/clock.h"

namespace cohort::bench {
namespace {

using measure::Operation;

constexpr size_t kMostWays = 8;
constexpr int kTries = 2;                     // of each way; with few ways all lie before the first timed call
constexpr size_t kWholeAllReduce = 16 << 10;  // up to here both send their whole input, above it a half twice
constexpr size_t kLeavesCaches = 1 << 20;
constexpr uint64_t kNever = ~uint64_t{0} >> 1;

// A rank's own block.
void CopyOwn(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes < kLeavesCaches) {
    std::memcpy(to, from, bytes);
  } else {
    comm::StreamCopy(to, from, bytes);
  }
}

class Bare final : public System {
 public:
  Bare(std::unique_ptr<BarePair> pair, int rank) : pair_(std::move(pair)), rank_(rank) {}
  int rank() const override { return rank_; }
  int ranks() const override { return 2; }
  std::string Run(const SystemCall& call) override {
    if (call.operation == Operation::kSendRecv || call.compute_us > 0) return "is not compared here";
    Choice& choice = choices_[static_cast<size_t>(call.variant)];
    const bool window = call.variant == 1;
    const int tries = pair_->ways(window) * kTries;
    if (choice.calls == tries) {
      pair_->UseWay(window, choice.way);
      Carry(call);
      return "";
    }
    const int way = choice.calls++ % pair_->ways(window);
    pair_->UseWay(window, way);
    const uint64_t begin = measure::Ticks();
    Carry(call);
    auto& least = choice.least[static_cast<size_t>(way)];
    least = std::min(least, measure::Ticks() - begin);
    if (choice.calls == tries) Choose(pair_->ways(window), &choice);
    return "";
  }
  void* Allocate(int variant, int buffer, int64_t bytes) override {
    choices_[static_cast<size_t>(variant)] = {};
    if (variant == 0) return System::Allocate(variant, buffer, bytes);
    return bytes == 0 ? nullptr : pair_->Window(buffer);
  }
  void Release(int variant) override {
    if (variant == 0) return System::Release(variant);
    pair_->ReleaseWindows();
  }

 private:
  // The choice of a way for one kind of memory at one point.
  struct Choice {
    Choice() { least.fill(kNever); }
    int calls = 0;  // while ways are tried
    int way = 0;    // afterwards
    std::array<uint64_t, kMostWays> least;
  };

  // The way whose slower rank is the quickest.
  void Choose(int ways, Choice* choice) {
    uint64_t least = kNever;
    for (int way = 0; way < ways; ++way) {
      const uint64_t own = choice->least[static_cast<size_t>(way)];
      const uint64_t took = std::max(own, pair_->Swap(own));
      if (took < least) choice->way = way;
      least = std::min(least, took);
    }
  }
  void Carry(const SystemCall& call);
  void AllReduce(const std::byte* in, std::byte* out, size_t bytes);

  std::unique_ptr<BarePair> pair_;
  const int rank_;
  std::array<Choice, 2> choices_;
};

void Bare::AllReduce(const std::byte* in, std::byte* out, size_t bytes) {
  if (bytes <= kWholeAllReduce) {
    return pair_->Run({.send = in, .send_bytes = bytes, .receive = out, .receive_bytes = bytes, .addend = in});
  }
  const size_t half = bytes / 2 / sizeof(float) * sizeof(float);
  const std::array<size_t, 3> bounds = {0, half, bytes};
  const size_t own = bounds[static_cast<size_t>(rank_)];
  const size_t own_bytes = bounds[static_cast<size_t>(rank_) + 1] - own;
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
  const BareStep send{.send = in, .send_bytes = bytes};
  switch (call.operation) {
    case Operation::kBroadcast:
      return pair_->Run(is_root ? send : BareStep{.receive = out, .receive_bytes = bytes});
    case Operation::kReduce:
      return pair_->Run(is_root ? BareStep{.receive = out, .receive_bytes = bytes, .addend = in, .one_way_sum = true}
                                : BareStep{.send = in, .send_bytes = bytes, .one_way_sum = true});
    case Operation::kAllReduce:
      return AllReduce(in, out, bytes);
    case Operation::kGather:
      if (!is_root) return pair_->Run(send);
      CopyOwn(out + own, in, bytes);
      return pair_->Run({.receive = out + others, .receive_bytes = bytes});
    case Operation::kScatter:
      if (!is_root) return pair_->Run({.receive = out, .receive_bytes = bytes});
      pair_->Run({.send = in + others, .send_bytes = bytes});
      CopyOwn(out, in + own, bytes);
      return;
    case Operation::kAllGather:
      pair_->Run({.send = in, .send_bytes = bytes, .receive = out + others, .receive_bytes = bytes});
      CopyOwn(out + own, in, bytes);
      return;
    case Operation::kReduceScatter:
      return pair_->Run(
          {.send = in + others, .send_bytes = bytes, .receive = out, .receive_bytes = bytes, .addend = in + own});
    case Operation::kAllToAll:
      pair_->Run({.send = in + others, .send_bytes = bytes, .receive = out + others, .receive_bytes = bytes});
      CopyOwn(out + own, in + own, bytes);
      return;
    case Operation::kBarrier: {
      const std::byte token{};
      std::byte arrived{};
      return pair_->Run({.send = &token, .send_bytes = 1, .receive = &arrived, .receive_bytes = 1});
    }
    case Operation::kSendRecv:
      break;
  }
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
  const int rank = std::atoi(argv[6]);
  KeepToCpu(rank);
  auto pair = std::strcmp(argv[3], "tcp") == 0 ? JoinBareSockets(argv[5], rank) : JoinBareMemory(argv[5], rank);
  if (!pair.ok()) {
    std::fprintf(stderr, "%s\n", std::string(pair.status().message()).c_str());
    return 1;
  }
  Bare system(*std::move(pair), rank);
  return Serve(system, argv[1], std::atoi(argv[2]), std::atoi(argv[4]));
}

}  // namespace
}  // namespace cohort::bench

// bare_rank SESSION RANKS TRANSPORT PLACE FOLDER RANK
int main(int argc, char** argv) { return cohort::bench::Main(argc, argv); }
