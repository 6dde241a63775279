// One rank of a job that is started again after a loss. In the first epoch it meets the others again and again until
// somebody kills one of them; in a later one it meets them once and ends (restart_test.py).
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort::testing {
namespace {

int Main() {
  auto runtime = runtime::Runtime::Init();
  if (!runtime.ok()) {
    std::fprintf(stderr, "init: %s\n", runtime.status().ToString().c_str());
    return 1;
  }
  auto world = comm::Communicator::World(**runtime);
  if (!world.ok()) {
    std::fprintf(stderr, "world: %s\n", world.status().ToString().c_str());
    return 1;
  }
  const runtime::Identity& identity = (*runtime)->identity();
  for (bool first = true;; first = false) {
    if (const absl::Status met = (*world)->Barrier().Wait(); !met.ok()) {
      std::fprintf(stderr, "barrier: %s\n", met.ToString().c_str());
      return 1;
    }
    if (first) {
      std::printf("epoch %d rank %d of %d on node %d of %d met\n", static_cast<int>(identity.epoch), identity.rank,
                  identity.world_size, identity.node, static_cast<int>(identity.nodes.size()));
      std::fflush(stdout);
    }
    if (identity.epoch > 1) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // leaves the machine to others meanwhile
  }
  return (*runtime)->Finalize().ok() ? 0 : 1;
}

}  // namespace
}  // namespace cohort::testing

int main() { return cohort::testing::Main(); }
