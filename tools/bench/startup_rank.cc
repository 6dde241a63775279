// The rank that `tools/dev bench startup` starts: it joins the job, waits at one barrier and ends.
#include <cstdio>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

int main() {
  auto job = cohort::runtime::Runtime::Init();
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", job.status().ToString().c_str());
    return 1;
  }
  auto world = cohort::comm::Communicator::World(**job);
  const absl::Status met = world.ok() ? (*world)->Barrier().Wait() : world.status();
  if (met.ok()) return 0;
  std::fprintf(stderr, "%s\n", met.ToString().c_str());
  return 1;
}
