// The ranks of trace_test.cc: make calls, and print how many their black box has counted.
//   COUNT PAUSE_US   that many all-reduces, and a message to the next rank. If there is a pause, a rank comes to each
//                    sixteenth of them 3 ms after all others of its node.
//   die COUNT        the same, and rank 1 ends by SIGKILL half-way
//   stop COUNT       that many all-reduces, and nothing else
// Each all-reduce is a step, with a range "compute" before the call, which has a range "inner" in it.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/ranges.h"
#include "cohort/runtime/runtime.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort {
namespace {

using std::chrono::microseconds;

struct Wanted {
  int count = 0;
  microseconds pause{0};
  bool dies = false;
  bool stops = false;
};

// Waits until all other ranks of this node are in a call more than this rank has made.
void AwaitNeighbours(runtime::Runtime& runtime) {
  runtime::Segment& segment = runtime.segment();
  const uint64_t own = segment.black_box().latest();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int rank = 0; rank < segment.local_ranks(); ++rank) {
    while (rank != runtime.local_rank() && segment.black_box_of(rank).latest() <= own &&
           std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(microseconds(50));
    }
  }
}

absl::Status Run(const Wanted& wanted) {
  COHORT_ASSIGN_OR_RETURN(const auto runtime, runtime::Runtime::Init());
  COHORT_ASSIGN_OR_RETURN(const auto world, comm::Communicator::World(*runtime));
  std::vector<float> data(2, 1);
  std::printf("up\n");
  std::fflush(stdout);
  for (int i = 0; i < wanted.count; ++i) {
    runtime::MarkStep(static_cast<uint64_t>(i));
    {
      const runtime::Range outer("compute");
      const runtime::Range inner("inner", runtime::RangeLane::kProgram, static_cast<uint64_t>(i));
    }
    if (wanted.pause.count() > 0) std::this_thread::sleep_for(wanted.pause);  // as if it computed
    if (wanted.pause.count() > 0 && i % 16 == 0 && i / 16 % world->size() == world->rank()) {
      AwaitNeighbours(*runtime);
      std::this_thread::sleep_for(microseconds(3000));
    }
    if (wanted.dies && i == wanted.count / 2 && world->rank() == 1) ::raise(SIGKILL);
    COHORT_RETURN_IF_ERROR(world->AllReduce(data, data, comm::ReduceOp::kMax).Wait());
  }
  if (wanted.stops) return runtime->Finalize();
  const int next = (world->rank() + 1) % world->size();
  const int before = (world->rank() + world->size() - 1) % world->size();
  comm::Work sent = world->Send(data, next);
  std::vector<float> received(2);
  COHORT_RETURN_IF_ERROR(world->Recv(received, before).Wait());
  COHORT_RETURN_IF_ERROR(sent.Wait());
  COHORT_RETURN_IF_ERROR(world->Barrier().Wait());
  std::printf("calls %llu\n", static_cast<unsigned long long>(runtime->segment().black_box().latest()));
  return runtime->Finalize();
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  cohort::Wanted wanted;
  wanted.dies = argc > 1 && std::string(argv[1]) == "die";
  wanted.stops = argc > 1 && std::string(argv[1]) == "stop";
  const bool named = wanted.dies || wanted.stops;
  if (argc > (named ? 2 : 1)) wanted.count = std::atoi(argv[named ? 2 : 1]);
  if (wanted.dies) wanted.pause = cohort::microseconds(100);
  if (!named && argc > 2) wanted.pause = cohort::microseconds(std::atoi(argv[2]));
  const absl::Status status = cohort::Run(wanted);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
