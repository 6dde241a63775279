// A process that opens its runtime several times, as a library does that trains more than once: run as
// `dlaunch -- <this> HOW`.
//
//   again        opens, computes and finalizes five times, with a window, a subgroup and the same keys each time
//   ahead        rank 0 finalizes its runtimes before the others have opened theirs, and they read what it left
//   kept         objects of a finalized runtime live on, and are destroyed while the next runtime is in use
//   twice        a second runtime beside one that is open is refused, and the first goes on
//   failed       a runtime that was refused is opened again
//   wrapped      as `again`, from a child of the process that dlaunch started, which goes on after it
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/window.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::Buffer;
using comm::Communicator;
using comm::ReduceOp;
using runtime::Deadline;
using runtime::Runtime;

constexpr int kRounds = 5;
constexpr std::chrono::seconds kLimit(30);

struct Opened {
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Communicator> world;
};

absl::StatusOr<Opened> Open() {
  Opened opened;
  COHORT_ASSIGN_OR_RETURN(opened.runtime, Runtime::Init());
  COHORT_ASSIGN_OR_RETURN(opened.world, Communicator::World(*opened.runtime));
  return opened;
}

absl::Status Wrong(const std::string& what) { return absl::InternalError(what + " is wrong"); }

// Sums of several lengths, over several algorithms.
absl::Status Sum(Communicator& group, int round) {
  for (const int64_t count : {1, 1000, 300'000}) {
    std::vector<int32_t> data(static_cast<size_t>(count), group.rank() + round);
    COHORT_RETURN_IF_ERROR(group.AllReduce(data, data, ReduceOp::kSum).Wait(kLimit));
    const int32_t expected = group.size() * (group.size() - 1) / 2 + group.size() * round;
    for (const int32_t value : data) {
      if (value != expected) return Wrong("a sum of " + std::to_string(count) + " in round " + std::to_string(round));
    }
  }
  return absl::OkStatus();
}

absl::Status Use(Opened& opened, int round) {
  Communicator& world = *opened.world;
  COHORT_RETURN_IF_ERROR(Sum(world, round));
  COHORT_ASSIGN_OR_RETURN(const comm::Window window, world.AllocateWindow(1 << 16));
  auto* const data = static_cast<int64_t*>(window.data());
  constexpr int64_t kCount = 1000;
  for (int64_t i = 0; i < kCount; ++i) data[i] = i + round;
  COHORT_RETURN_IF_ERROR(world.AllReduce(Buffer(data, kCount), Buffer(data, kCount), ReduceOp::kMax).Wait(kLimit));
  if (data[kCount - 1] != kCount - 1 + round) return Wrong("a window");
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> parity, world.Split(world.rank() % 2, world.rank()));
  COHORT_RETURN_IF_ERROR(Sum(*parity, round));
  const std::string value = std::to_string(round);
  if (world.rank() == 0) COHORT_RETURN_IF_ERROR(opened.runtime->Put("key", value, Deadline::After(kLimit)));
  COHORT_ASSIGN_OR_RETURN(const std::string got, opened.runtime->Get("key", Deadline::After(kLimit)));
  if (got != value) return Wrong("the value of a key in round " + value);
  runtime::VariableCall add{.kind = runtime::VariableCall::Kind::kAdd, .key = "count", .amount = 1};
  COHORT_ASSIGN_OR_RETURN(const runtime::VariableResult sum,
                          opened.runtime->CallVariable(add, Deadline::After(kLimit)));
  if (sum.number > world.size()) return Wrong("a variable");
  return absl::OkStatus();
}

absl::Status End(Opened& opened) {
  opened.world.reset();
  return opened.runtime->Finalize();
}

absl::Status Again() {
  for (int round = 0; round < kRounds; ++round) {
    COHORT_ASSIGN_OR_RETURN(Opened opened, Open());
    COHORT_RETURN_IF_ERROR(Use(opened, round));
    COHORT_RETURN_IF_ERROR(End(opened));
  }
  return absl::OkStatus();
}

// Rank 0 says by a file that it has gone through all rounds but the last, which all meet in.
absl::Status Ahead(const std::string& file) {
  for (int round = 0; round < kRounds; ++round) {
    COHORT_ASSIGN_OR_RETURN(Opened opened, Open());
    int32_t value = opened.world->rank() == 0 ? round : -1;
    const Deadline deadline = Deadline::After(kLimit);
    while (opened.world->rank() != 0 && !std::ifstream(file).good()) {
      if (deadline.passed()) return absl::DeadlineExceededError("rank 0 does not come through alone");
      std::this_thread::yield();
    }
    COHORT_RETURN_IF_ERROR(opened.world->Broadcast(Buffer(&value, 1), 0).Wait(kLimit));
    if (value != round) return Wrong("what rank 0 left in round " + std::to_string(round));
    if (round + 1 == kRounds) COHORT_RETURN_IF_ERROR(Use(opened, round));
    COHORT_RETURN_IF_ERROR(End(opened));
    if (round + 2 == kRounds && opened.runtime->rank() == 0) std::ofstream(file).flush();
  }
  return absl::OkStatus();
}

absl::Status Kept() {
  Opened before;
  comm::Window window;
  for (int round = 0; round < kRounds; ++round) {
    COHORT_ASSIGN_OR_RETURN(Opened opened, Open());
    COHORT_RETURN_IF_ERROR(Use(opened, round));
    // Ranks destroy what is left of the round before at different places.
    if (opened.world->rank() % 2 == 0) window = {}, before.world.reset(), before.runtime.reset();
    COHORT_RETURN_IF_ERROR(Sum(*opened.world, round + 1));
    window = {}, before.world.reset(), before.runtime.reset();
    COHORT_RETURN_IF_ERROR(Sum(*opened.world, round));
    COHORT_ASSIGN_OR_RETURN(window, opened.world->AllocateWindow(1 << 20));
    COHORT_RETURN_IF_ERROR(opened.runtime->Finalize());
    if (Sum(*opened.world, round).code() != absl::StatusCode::kFailedPrecondition) return Wrong("a call after the end");
    before = std::move(opened);
  }
  window = {};
  return absl::OkStatus();
}

absl::Status Twice() {
  COHORT_ASSIGN_OR_RETURN(Opened opened, Open());
  for (int i = 0; i < 3; ++i) {
    const absl::Status second = Runtime::Init().status();
    if (second.code() != absl::StatusCode::kFailedPrecondition ||
        second.message().find("has a runtime already: finalize it") == std::string::npos) {
      return Wrong("the error of a second runtime: " + second.ToString());
    }
  }
  COHORT_RETURN_IF_ERROR(Use(opened, 0));
  return End(opened);
}

absl::Status Failed() {
  const std::string local_rank = getenv("COHORT_LOCAL_RANK");
  setenv("COHORT_LOCAL_RANK", "77", 1);
  const absl::Status failed = Runtime::Init().status();
  setenv("COHORT_LOCAL_RANK", local_rank.c_str(), 1);
  if (failed.message().find("no local rank 77") == std::string::npos) return Wrong("the error of a stranger");
  return Again();
}

absl::Status Wrapped() {
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = Again();
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    _exit(status.ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? absl::OkStatus() : Wrong("the child's end");
}

int Run(const std::string& how, const std::string& file) {
  const absl::Status status = how == "again"    ? Again()
                              : how == "ahead"  ? Ahead(file)
                              : how == "kept"   ? Kept()
                              : how == "twice"  ? Twice()
                              : how == "failed" ? Failed()
                                                : Wrapped();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return argc >= 2 ? cohort::Run(argv[1], argc > 2 ? argv[2] : "") : 2; }
