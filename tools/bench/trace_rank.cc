// The rank that `tools/dev bench trace` measures: all-reduces of 8 bytes until SECONDS have passed, and what one took
// on rank 0 in each twentieth of a second: "when 12.345 ns 412.3", the seconds of the wall clock.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

constexpr int kBatch = 1000;
constexpr std::chrono::milliseconds kWindow{50};

absl::Status Run(double seconds) {
  COHORT_ASSIGN_OR_RETURN(const auto runtime, runtime::Runtime::Init());
  COHORT_ASSIGN_OR_RETURN(const auto world, comm::Communicator::World(*runtime));
  if (world->rank() == 0) std::printf("job %s\n", runtime->identity().job_id.c_str());
  std::fflush(stdout);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  float data[2] = {1, 2};
  float goes_on[1] = {1};
  while (goes_on[0] > 0) {
    const Clock::time_point begin = Clock::now();
    int64_t calls = 0;
    Clock::duration taken{};
    while (taken < kWindow) {
      for (int i = 0; i < kBatch; ++i) {
        COHORT_RETURN_IF_ERROR(
            world->AllReduce(comm::ConstBuffer(data, 2), comm::Buffer(data, 2), comm::ReduceOp::kMax).Wait());
      }
      calls += kBatch;
      // All ranks leave the window together.
      taken = Clock::now() - begin;
      int64_t together = taken.count();
      COHORT_RETURN_IF_ERROR(
          world->AllReduce(comm::ConstBuffer(&together, 1), comm::Buffer(&together, 1), comm::ReduceOp::kMax).Wait());
      taken = Clock::duration(together);
    }
    if (world->rank() == 0) {
      const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
      std::printf("when %.3f ns %.1f\n", now.count(),
                  std::chrono::duration<double, std::nano>(taken).count() / static_cast<double>(calls));
      std::fflush(stdout);
    }
    goes_on[0] = Clock::now() < end ? 1 : 0;
    COHORT_RETURN_IF_ERROR(
        world->AllReduce(comm::ConstBuffer(goes_on, 1), comm::Buffer(goes_on, 1), comm::ReduceOp::kMin).Wait());
  }
  return runtime->Finalize();
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  const absl::Status status = cohort::Run(argc > 1 ? std::atof(argv[1]) : 10);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
