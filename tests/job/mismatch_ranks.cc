// Calls that do not match, seen from inside a job: run as `dlaunch ... <this> SCENARIO`. Every rank makes its call (or
// none), then a barrier; by then each must hold an error that names both calls. Exits with 1 and says what it saw
// otherwise. The promise is 1 s; asserted at ten times that.
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::Buffer;
using comm::CallOptions;
using comm::Communicator;
using comm::ConstBuffer;
using comm::Deadline;
using comm::ReduceOp;
using comm::Work;
using std::chrono::steady_clock;

constexpr auto kPromise = std::chrono::seconds(1);
constexpr int kSlack = 10;

struct Memory {
  std::vector<float> in = std::vector<float>(4096, 1.0f);
  std::vector<float> out = std::vector<float>(4096);
  std::vector<double> in64 = std::vector<double>(4096, 1.0);
  std::vector<double> out64 = std::vector<double>(4096);
};

struct Scenario {
  std::function<Work(Communicator&, Memory&)> odd;     // what the last rank calls; null: nothing
  std::function<Work(Communicator&, Memory&)> others;  // what everyone else calls
  std::vector<std::string> words;                      // all must stand in every rank's error
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
};

CallOptions Within(std::chrono::nanoseconds timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}

Work Sum(Communicator& world, Memory& memory, int64_t count) {
  return world.AllReduce({memory.in.data(), count}, {memory.out.data(), count}, ReduceOp::kSum);
}

std::map<std::string, Scenario> Scenarios() {
  const auto sum = [](Communicator& world, Memory& memory) { return Sum(world, memory, 100); };
  std::map<std::string, Scenario> scenarios;
  scenarios["kind"] = {
      [](auto& w, auto& m) { return w.Broadcast({m.out.data(), 100}, 0); }, sum, {"all_reduce", "broadcast"}};
  scenarios["count"] = {[](auto& w, auto& m) { return Sum(w, m, 101); }, sum, {"100", "101"}};
  scenarios["big_count"] = {[](auto& w, auto& m) { return Sum(w, m, 4096); },
                            [](auto& w, auto& m) { return Sum(w, m, 2048); },
                            {"2048", "4096"}};
  scenarios["type"] = {
      [](auto& w, auto& m) { return w.AllReduce({m.in64.data(), 50}, {m.out64.data(), 50}, ReduceOp::kSum); },
      [](auto& w, auto& m) { return Sum(w, m, 50); },
      {"float32", "float64"}};
  scenarios["op"] = {[](auto& w, auto& m) { return w.AllReduce({m.in.data(), 9}, {m.out.data(), 9}, ReduceOp::kMax); },
                     [](auto& w, auto& m) { return Sum(w, m, 9); },
                     {"sum", "max"}};
  scenarios["root"] = {[](auto& w, auto& m) { return w.Broadcast({m.out.data(), 7}, w.size() - 1); },
                       [](auto& w, auto& m) { return w.Broadcast({m.out.data(), 7}, 0); },
                       {"broadcast", "root"}};
  // The root that each side waits for gets nothing from the other: no message of the two calls ever meets.
  scenarios["never_meet"] = {
      [](auto& w, auto& m) { return w.Gather({m.in.data(), 1}, {m.out.data(), w.size()}, w.size() - 1); },
      [](auto& w, auto& m) { return w.Gather({m.in.data(), 1}, {m.out.data(), w.size()}, 0); },
      {"gather", "root"}};
  scenarios["never_meet_pair"] = {[](auto& w, auto& m) { return w.Recv({m.out.data(), 8}, 0); },
                                  [](auto& w, auto&) { return w.Barrier(Within(std::chrono::seconds(2))); },
                                  {"barrier()", "recv(", "(deadlock)"}};
  scenarios["absent"] = {nullptr,
                         [](auto& w, auto& m) {
                           return w.AllReduce({m.in.data(), 9}, {m.out.data(), 9}, ReduceOp::kSum,
                                              Within(std::chrono::milliseconds(500)));
                         },
                         {"all_reduce"},
                         absl::StatusCode::kDeadlineExceeded};
  return scenarios;
}

int Run(const std::string& name) {
  const auto scenarios = Scenarios();
  const auto found = scenarios.find(name);
  if (found == scenarios.end()) {
    std::fprintf(stderr, "no scenario %s\n", name.c_str());
    return 2;
  }
  auto job = runtime::Runtime::Init();
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", job.status().ToString().c_str());
    return 2;
  }
  auto world = Communicator::World(**job);
  if (!world.ok() || (*world)->size() < 2) {
    std::fprintf(stderr, "%s\n", world.ok() ? "needs two ranks" : world.status().ToString().c_str());
    return 2;
  }
  Memory memory;
  // All are here: what follows is no start-up skew. (A rank may see the others' later calls while it is still here.)
  absl::Status status = (*world)->Barrier().Wait();
  const bool odd = (*world)->rank() == (*world)->size() - 1;
  const auto& call = odd ? found->second.odd : found->second.others;
  const auto start = steady_clock::now();
  const Deadline limit = Deadline::After(kPromise * kSlack);
  if (status.ok() && call != nullptr) status = call(**world, memory).Wait();
  if (found->second.odd == nullptr) {
    // The absent rank stays away until the others have given up.
    if ((*world)->rank() == 0 && !(*job)->Put("given up", "yes", limit).ok()) return 1;
    if (odd && !(*job)->Get("given up", limit).ok()) return 1;
  }
  if (status.ok()) {
    // This rank's part was over before the others' call was known to differ: the next call says so. An absent rank
    // gets the others' deadline here.
    status = (*world)->Barrier(Within(std::chrono::seconds(30))).Wait();
  }
  const std::chrono::duration<double> seconds = steady_clock::now() - start;
  std::printf("%s after %.3f s: %s\n", name.c_str(), seconds.count(), status.ToString().c_str());
  int wrong = 0;
  const auto expect = [&](bool condition, const std::string& what) {
    if (condition) return;
    ++wrong;
    std::fprintf(stderr, "rank %d: %s\n", (*job)->rank(), what.c_str());
  };
  // The barrier of a rank that had been absent may meet the others' call before it gets their deadline.
  const bool came_late = odd && call == nullptr && status.code() == absl::StatusCode::kFailedPrecondition;
  expect(status.code() == found->second.code || came_late, "another status code was expected");
  const std::string text(status.message());
  for (const std::string& word : found->second.words) {
    expect(text.find(word) != std::string::npos, "the error does not say '" + word + "'");
  }
  expect(text.find("mismatch_ranks.cc:") != std::string::npos, "the error names no call site");
  expect(seconds.count() <= std::chrono::duration<double>(kPromise).count() * kSlack, "the error came late");
  world->reset();
  const absl::Status end = (*job)->Finalize();
  expect(end.ok(), "reported twice: " + end.ToString());
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s SCENARIO\n", argv[0]);
    return 2;
  }
  return cohort::Run(argv[1]);
}
