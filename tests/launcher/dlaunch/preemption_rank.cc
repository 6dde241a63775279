// A rank that counts steps until it is preempted: `preemption_rank STEPS MICROSECONDS FOLDER`. Steps take up to
// MICROSECONDS, each rank its own time, and ranks do not wait for each other. Leaves the step that it stopped before in
// FOLDER/stopped-RANK, or "end".
//
//   stuck         never comes to its next step, from its third on
//   leaves-early  rank 0 ends after three steps
//   dies          rank 0 is stuck so, and the last rank kills itself when it has answered a notice
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "cohort/runtime/runtime.h"

namespace cohort::testing {
namespace {

// While another rank's answer is missing, having waited in vain means having answered.
void DieOnceToldFrom(runtime::Runtime& runtime, uint64_t step) {
  while (!absl::IsDeadlineExceeded(runtime.OnPreemption(step, std::chrono::milliseconds(10)).status())) {
  }
  kill(getpid(), SIGKILL);
}

int Main(int argc, char** argv) {
  if (argc < 4) return 2;
  const uint64_t steps = std::strtoull(argv[1], nullptr, 10);
  const int longest = std::atoi(argv[2]);
  const std::string folder = argv[3];
  const std::string how = argc > 4 ? argv[4] : "";
  auto runtime = runtime::Runtime::Init();
  if (!runtime.ok()) {
    std::fprintf(stderr, "init: %s\n", runtime.status().ToString().c_str());
    return 1;
  }
  const int rank = (*runtime)->rank();
  std::mt19937 random(static_cast<uint32_t>(rank) + 1);
  std::string stopped = "end";
  for (uint64_t step = 0; step < steps; ++step) {
    const absl::StatusOr<bool> stop = (*runtime)->OnPreemption(step);
    if (!stop.ok()) {
      std::fprintf(stderr, "step: %s\n", stop.status().ToString().c_str());
      return 1;
    }
    if (*stop) {
      stopped = std::to_string(step);
      break;
    }
    if (step == 2) {
      std::printf("under way\n");
      std::fflush(stdout);
      if (how == "leaves-early" && rank == 0) break;
      if (how == "stuck" || (how == "dies" && rank == 0)) std::this_thread::sleep_for(std::chrono::hours(1));
      if (how == "dies" && rank == (*runtime)->world_size() - 1) DieOnceToldFrom(**runtime, step);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<uint32_t>(longest)));
  }
  std::ofstream(folder + "/stopped-" + std::to_string(rank)) << stopped;
  return (*runtime)->Finalize().ok() ? 0 : 1;
}

}  // namespace
}  // namespace cohort::testing

int main(int argc, char** argv) { return cohort::testing::Main(argc, argv); }
