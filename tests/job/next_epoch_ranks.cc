// One rank of a job that lives on when another is lost: it meets the others again and again, and when that fails it
// joins the next epoch in the same process. `next_epoch_ranks EPOCHS [HOW]`: in the epoch of that number it meets them
// three times and ends.
//
//   again    leaves each epoch although nothing has failed
//   dawdles  rank 1 does not come to the second epoch in time
//   slow     takes 400 ms to leave the first epoch
//   strict   does the same without having said that it stays
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort::testing {
namespace {

int Fail(const char* what, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  return 1;
}

// Meets the others `times` times, or until it fails; what it used is gone when it returns.
absl::Status Meet(runtime::Runtime& runtime, int64_t times) {
  auto world = comm::Communicator::World(runtime);
  if (!world.ok()) return world.status();
  for (int64_t i = 0; i < times; ++i) {
    const absl::Status met = (*world)->Barrier().Wait();
    if (!met.ok()) return met;
    if (i == 0) {
      std::printf("epoch %d rank %d of %d met, pid %d\n", static_cast<int>(runtime.identity().epoch), runtime.rank(),
                  runtime.world_size(), static_cast<int>(getpid()));
      std::fflush(stdout);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // leaves the machine to others meanwhile
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const uint64_t last = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2;
  const std::string how = argc > 2 ? argv[2] : "";
  const bool unasked = how == "again" || how == "strict";
  runtime::RuntimeOptions options;
  options.stays = how != "strict";
  auto joined = runtime::Runtime::Init(std::move(options));
  if (!joined.ok()) return Fail("init", joined.status());
  std::unique_ptr<runtime::Runtime> runtime = *std::move(joined);
  while (runtime->identity().epoch < last) {
    const absl::Status met = Meet(*runtime, unasked ? 3 : int64_t{1} << 40);
    if (!unasked && !absl::IsUnavailable(met)) return Fail("meeting", met);
    if (how == "dawdles" && runtime->rank() == 1 && runtime->identity().epoch == 1) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
    if (how == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(400));
    auto next = runtime::Runtime::NextEpoch(std::move(runtime));
    if (!next.ok()) return Fail("next epoch", next.status());
    runtime = *std::move(next);
  }
  const absl::Status met = Meet(*runtime, 3);
  if (!met.ok()) return Fail("last meeting", met);
  return runtime->Finalize().ok() ? 0 : 1;
}

}  // namespace
}  // namespace cohort::testing

int main(int argc, char** argv) { return cohort::testing::Main(argc, argv); }
