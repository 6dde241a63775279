// One rank of a job that loses ranks and goes on each time. For dlaunch --on-failure continue:
//
//   shrink_ranks SEED           two of the ranks kill themselves, one after the other (shrink_test.py)
//   shrink_ranks SEED TARGET    somebody else kills ranks until TARGET are left (shrink_kill_test.py)
//   shrink_ranks SEED ended     rank 0 ends in order, the last rank kills itself; the others then shrink in vain
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cohort/runtime/runtime.h"
#include "tests/comm/group/survivors.h"

namespace cohort::testing {
namespace {

std::string LoseTwo(comm::Communicator& world, uint64_t seed) {
  const auto dies_at = [seed](int round) {
    return static_cast<int>(2 + (seed * 13 + static_cast<uint64_t>(round)) % 60);
  };
  const int first = static_cast<int>(seed % static_cast<uint64_t>(world.size()));
  Survivors survivors(&world, seed, world.rank() == first ? dies_at(1) : -1);
  if (std::string wrong = survivors.LoseOne(); !wrong.empty()) return wrong;
  comm::Communicator& group = *survivors.group();
  const int second = static_cast<int>(seed / 2 % static_cast<uint64_t>(group.size()));
  Survivors fewer(&group, seed + 1000, group.rank() == second ? dies_at(2) : -1);
  if (std::string wrong = fewer.LoseOne(); !wrong.empty()) return wrong;
  std::printf("rank %d goes on among %d\n", world.rank(), fewer.group()->size());
  return "";
}

std::string LoseUntil(comm::Communicator& world, uint64_t seed, int target) {
  Survivors survivors(&world, seed, -1);
  const std::string wrong = survivors.GoOnUntil(target, [](const char* doing) {
    std::printf("%s\n", doing);
    std::fflush(stdout);
  });
  if (!wrong.empty()) return wrong;
  std::string members;
  for (const int member : survivors.group()->members()) members += " " + std::to_string(member);
  std::printf("goes on among%s\n", members.c_str());
  return "";
}

std::string ShrinkWithoutTheEnded(comm::Communicator& world) {
  for (int i = 0; i < 600; ++i) (void)world.Barrier().Wait();  // more than a black box remembers
  if (world.rank() == 0) return "";
  if (world.rank() == world.size() - 1) kill(getpid(), SIGKILL);
  (void)AwaitFailure(world);
  const auto start = std::chrono::steady_clock::now();
  const auto group = world.Shrink(std::chrono::seconds(50));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!absl::IsUnavailable(group.status())) return group.ok() ? "shrunk" : group.status().ToString();
  std::printf("told after %.1f s: %s\n", seconds, std::string(group.status().message()).c_str());
  return seconds < 20 ? "" : "told too late";
}

int Main(uint64_t seed, const std::string& mode) {
  auto runtime = runtime::Runtime::Init();
  if (!runtime.ok()) {
    std::fprintf(stderr, "init: %s\n", runtime.status().ToString().c_str());
    return 1;
  }
  auto world = comm::Communicator::World(**runtime);
  const std::string wrong = !world.ok()       ? world.status().ToString()
                            : mode.empty()    ? LoseTwo(**world, seed)
                            : mode == "ended" ? ShrinkWithoutTheEnded(**world)
                                              : LoseUntil(**world, seed, std::atoi(mode.c_str()));
  if (!wrong.empty()) std::fprintf(stderr, "wrong: %s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace cohort::testing

int main(int argc, char** argv) {
  return cohort::testing::Main(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1, argc > 2 ? argv[2] : "");
}
