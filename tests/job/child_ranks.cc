// Forked children that end as programs do, by exit or by returning from main, while their parent is in a call: run as
// `dlaunch -- <this>`. Each child ends soon and in order, and the job goes on.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/window.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::Communicator;
using runtime::Runtime;

constexpr std::chrono::seconds kLimit(30);
constexpr unsigned kLongestLife = 20;  // seconds; a child that hangs is ended by SIGALRM

struct Objects {
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Communicator> world;
  std::unique_ptr<Communicator> self;  // of one member
  comm::Window window;
  comm::Work work;
};

Objects& TheObjects() {
  static Objects objects;  // destroyed by exit
  return objects;
}

// The child's exit status, or 128 + signal.
template <typename Body>
int InChild(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLongestLife);
    body();
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

absl::Status Run() {
  Objects& objects = TheObjects();
  COHORT_ASSIGN_OR_RETURN(objects.runtime, Runtime::Init({.progress_thread = true}));
  COHORT_ASSIGN_OR_RETURN(objects.world, Communicator::World(*objects.runtime));
  Communicator& world = *objects.world;
  COHORT_ASSIGN_OR_RETURN(objects.self, world.Split(world.rank(), 0));
  COHORT_ASSIGN_OR_RETURN(objects.window, world.AllocateWindow(4096));
  const auto nothing = [] {};
  const auto finalizes = [&objects] { objects.runtime->Finalize().IgnoreError(); };
  const auto destroys = [&objects] {
    objects.self.reset();
    objects.work = {};
    objects.window = {};
    objects.world.reset();
    objects.runtime.reset();
  };
  for (int round = 0; round < 3; ++round) {
    std::vector<int64_t> data(500'000, world.rank());
    objects.work = world.AllReduce(data, data, comm::ReduceOp::kSum);
    const int status = round == 0 ? InChild(nothing) : round == 1 ? InChild(finalizes) : InChild(destroys);
    if (status != 0) {
      return absl::InternalError("child " + std::to_string(round) + " ended with " + std::to_string(status));
    }
    COHORT_RETURN_IF_ERROR(objects.work.Wait(kLimit));
    if (data.back() != world.size() * (world.size() - 1) / 2) return absl::InternalError("a sum is wrong");
  }
  objects.window = {};
  objects.self.reset();
  objects.world.reset();
  return objects.runtime->Finalize();
}

}  // namespace
}  // namespace cohort

int main() {
  const absl::Status status = cohort::Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
