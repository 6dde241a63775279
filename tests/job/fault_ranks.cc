// One rank of a job whose ranks are killed or stopped at a random moment (fault_trials.py): runs a mix of collectives
// and messages until a call fails, prints when that was and what it was told, and ends.
//
//   fault_ranks SEED
//
// Lines: "ready" once the mix runs; "error <CLOCK_MONOTONIC in ns> <message>"; "wrong <what>" for a wrong result.
#include <time.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::Communicator;
using comm::ReduceOp;
using comm::Work;

constexpr int64_t kLongest = 1 << 18;  // elements
constexpr int kCallsBeforeReady = 20;

int64_t MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class Mix {
 public:
  Mix(Communicator* world, uint64_t seed) : world_(*world), random_(seed) {}

  // The next call of the program, which all ranks draw alike; fails when the call does or its result is wrong.
  absl::Status Next() {
    const uint64_t drawn = random_();
    const int64_t count = drawn % 3 == 0 ? 1 : drawn % 3 == 1 ? 5'000 : kLongest;
    const int64_t block = count / world_.size();
    const int root = static_cast<int>(drawn >> 8) & 1;
    switch (drawn >> 16 & 7) {
      case 0:
        return world_.Barrier().Wait();
      case 1:
        return world_.Broadcast({out_.data(), count}, root).Wait();
      case 2:
        return world_.AllToAll({in_.data(), block * world_.size()}, {out_.data(), block * world_.size()}).Wait();
      case 3:
        return world_.Gather({in_.data(), block}, {out_.data(), block * world_.size()}, root).Wait();
      case 4:
        return AroundTheRing(count);
      case 5:
        return TwoAtOnce(count);
      default:
        return Sum(count);
    }
  }

 private:
  absl::Status Sum(int64_t count) {
    absl::Status status = world_.AllReduce({in_.data(), count}, {out_.data(), count}, ReduceOp::kSum).Wait();
    if (status.ok() && out_[static_cast<size_t>(count - 1)] != static_cast<float>(world_.size())) {
      return absl::DataLossError("wrong sum");
    }
    return status;
  }

  absl::Status AroundTheRing(int64_t count) {
    const int next = (world_.rank() + 1) % world_.size();
    const int previous = (world_.rank() + world_.size() - 1) % world_.size();
    Work received = world_.Recv({out_.data(), count}, previous);
    Work sent = world_.Send({in_.data(), count}, next);
    absl::Status first = sent.Wait();
    absl::Status second = received.Wait();
    return first.ok() ? second : first;
  }

  absl::Status TwoAtOnce(int64_t count) {
    Work first = world_.AllReduce({in_.data(), count}, {out_.data(), count}, ReduceOp::kSum);
    Work second = world_.AllGather({in_.data(), 1}, {small_.data(), world_.size()});
    absl::Status later = second.Wait();
    absl::Status earlier = first.Wait();
    return earlier.ok() ? later : earlier;
  }

  Communicator& world_;
  std::mt19937_64 random_;
  std::vector<float> in_ = std::vector<float>(kLongest, 1.0f);
  std::vector<float> out_ = std::vector<float>(kLongest);
  std::array<float, 64> small_{};
};

int Run(uint64_t seed) {
  auto job = runtime::Runtime::Init();
  auto world = job.ok() ? Communicator::World(**job) : absl::StatusOr<std::unique_ptr<Communicator>>(job.status());
  if (!world.ok()) {
    std::fprintf(stderr, "%s\n", world.status().ToString().c_str());
    return 2;
  }
  Mix mix(world->get(), seed);
  for (int64_t calls = 0;; ++calls) {
    const absl::Status status = mix.Next();
    if (!status.ok()) {
      const int64_t heard = MonotonicNow();
      std::printf("error %lld %s\n", static_cast<long long>(heard), status.ToString().c_str());
      return 0;
    }
    if (calls == kCallsBeforeReady) {
      std::printf("ready\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return cohort::Run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1); }
