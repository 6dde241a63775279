// A rank that ends with status 0 while its peers wait in a call that it takes part in: run as `dlaunch --on-failure
// continue -- <this> HOW`, with HOW `exit` (at once, its call under way), `finalize` (in order, its call under way), or
// `late` (as `exit`, but a second later). The last rank leaves; each of the others must hold an
// error that names it. The promise is 1 s; asserted at ten times that.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::Communicator;
using comm::ReduceOp;
using std::chrono::steady_clock;

constexpr auto kPromise = std::chrono::seconds(1);
constexpr int kSlack = 10;
constexpr int64_t kCount = 1 << 20;  // of which a rank that leaves at once has sent no more than a beginning

// The last rank's part.
int Leave(const std::string& how, runtime::Runtime& job, std::unique_ptr<Communicator> world) {
  std::vector<float> data(kCount, 1.0f);
  const comm::Work work = world->AllReduce({data.data(), kCount}, {data.data(), kCount}, ReduceOp::kSum);
  // Meanwhile the others come to wait, and nothing of the call moves: only a wait drives it.
  if (how == "late") std::this_thread::sleep_for(std::chrono::seconds(1));
  if (how == "finalize") {
    world.reset();
    job.Finalize().IgnoreError();
  }
  _exit(0);
}

int Run(const std::string& how) {
  auto job = runtime::Runtime::Init();
  auto world = job.ok() ? Communicator::World(**job) : absl::StatusOr<std::unique_ptr<Communicator>>(job.status());
  absl::Status status = world.ok() ? (*world)->Barrier().Wait() : world.status();
  // The last rank may have left this barrier, and destroyed its communicator, before the others have: that call fails.
  const bool early = how == "finalize" && status.code() == absl::StatusCode::kAborted;
  if (!status.ok() && !early) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 2;
  }
  const int last = (*world)->size() - 1;
  auto left = steady_clock::now();
  if ((*world)->rank() == last) return Leave(how, **job, *std::move(world));
  if (how == "late") left += std::chrono::seconds(1);
  std::vector<float> data(kCount, 1.0f);
  comm::CallOptions options;
  options.timeout = std::chrono::seconds(60);
  if (status.ok()) {
    status = (*world)->AllReduce({data.data(), kCount}, {data.data(), kCount}, ReduceOp::kSum, options).Wait();
  }
  // All that a rank needed from the one that left may have come: then it lacks it in the next call.
  if (status.ok()) status = (*world)->Barrier(options).Wait();
  const double seconds = std::chrono::duration<double>(steady_clock::now() - left).count();
  std::printf("%s after %.3f s: %s\n", how.c_str(), seconds, status.ToString().c_str());
  const std::string who = "rank " + std::to_string(last) + " ";
  // The last rank destroys its communicator before it ends in order: the others may get either error.
  const bool destroyed = how == "finalize" && status.code() == absl::StatusCode::kAborted;
  bool right = destroyed || status.code() == absl::StatusCode::kUnavailable;
  right = right && std::string(status.message()).find(who) != std::string::npos;
  right = right && seconds < kSlack * std::chrono::duration<double>(kPromise).count();
  world->reset();
  (*job)->Finalize().IgnoreError();
  return right ? 0 : 1;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return argc == 2 ? cohort::Run(argv[1]) : 2; }
