// A rank that has done its part of a reduction, makes N more calls in a group of its own and ends in order, while the
// root still waits for a slow third one: run as `dlaunch -- <this> N`. Nothing is wrong, and nothing may be said to be:
// neither by the rank's last call, which is of another group, nor when its black box has forgotten the reduction.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::Communicator;
using comm::ReduceOp;

constexpr int64_t kCount = 16;
constexpr auto kSlow = std::chrono::milliseconds(1500);  // longer than the first three questions after a stall

absl::Status Play(Communicator& world, int calls) {
  auto own = world.Split(world.rank(), 0);
  if (!own.ok()) return own.status();
  std::vector<float> in(kCount, 1.0f);
  std::vector<float> out(kCount);
  if (world.rank() == 1) std::this_thread::sleep_for(kSlow);
  absl::Status status = world.Reduce({in.data(), kCount}, {out.data(), kCount}, ReduceOp::kSum, 0).Wait();
  if (status.ok() && world.rank() == 0 && out[0] != static_cast<float>(world.size())) {
    return absl::InternalError("wrong sum");
  }
  if (world.rank() != world.size() - 1) return status;
  for (int i = 0; i < calls && status.ok(); ++i) {
    status = (*own)->AllReduce({in.data(), kCount}, {out.data(), kCount}, ReduceOp::kSum).Wait();
  }
  return status;
}

int Run(int calls) {
  auto job = runtime::Runtime::Init();
  auto world = job.ok() ? Communicator::World(**job) : absl::StatusOr<std::unique_ptr<Communicator>>(job.status());
  absl::Status status = world.status();
  if (status.ok()) status = (*world)->Barrier().Wait();
  if (status.ok()) status = Play(**world, calls);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  if (world.ok()) world->reset();
  if (job.ok()) (*job)->Finalize().IgnoreError();
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return argc == 2 ? cohort::Run(std::atoi(argv[1])) : 2; }
