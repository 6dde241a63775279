// Ranks that wait for each other, seen from inside a job: run as `dlaunch ... <this> SCENARIO` with 4 ranks. Every rank
// in a cycle must get an error that names the ranks, their calls and call sites long before its timeout of ten minutes;
// the promise is 1 s, asserted at ten times that. The scenarios that only look like a cycle must end well. Exits with 1
// and says what it saw otherwise.
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/batch.h"
#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::Communicator;
using comm::ReduceOp;
using comm::Work;
using std::chrono::steady_clock;

constexpr auto kPromise = std::chrono::seconds(1);
constexpr int kSlack = 10;
constexpr auto kSlow = std::chrono::milliseconds(1500);  // longer than the promise
constexpr int64_t kSmall = 4;
constexpr int64_t kLarge = 8 << 20;  // 32 MiB: more than any transport buffers

struct Rank {
  Communicator* world = nullptr;
  Communicator* other = nullptr;  // of the same ranks
  int rank = 0;
  int size = 0;
  // Its partner is on the other of two nodes.
  int partner() const { return (rank + size / 2) % size; }
  int next() const { return (rank + 1) % size; }
  std::vector<float> in;
  std::vector<float> out;

  Work Send(Communicator* group, int to, int64_t count = kSmall) { return group->Send({in.data(), count}, to); }
  Work Recv(Communicator* group, int from, int64_t count = kSmall) { return group->Recv({out.data(), count}, from); }
  Work Sum(Communicator* group) { return group->AllReduce({in.data(), kSmall}, {out.data(), kSmall}, ReduceOp::kSum); }
};

struct Scenario {
  std::function<absl::Status(Rank&)> run;
  std::vector<std::string> words = {};  // all must stand in every rank's error; none: every rank must end well
};

// Computes, and calls nothing.
void BeSlow() {
  const auto end = steady_clock::now() + kSlow;
  while (steady_clock::now() < end) {
  }
}

absl::Status Both(absl::Status first, const absl::Status& second) { return first.ok() ? second : first; }

// The upper half waits for a thread of the lower half's that has not called anything yet.
absl::Status WaitForAThread(Rank& r, const std::function<void()>& before_its_first_call) {
  if (r.rank >= r.size / 2) {
    const absl::Status got = r.Recv(r.other, r.partner()).Wait();
    return got.ok() ? r.Send(r.world, r.partner()).Wait() : got;
  }
  absl::Status sent;
  std::thread thread([&] {
    before_its_first_call();
    sent = r.Send(r.other, r.partner()).Wait();
  });
  const absl::Status got = r.Recv(r.world, r.partner()).Wait();
  thread.join();
  return Both(got, sent);
}

void AddDeadlocks(std::map<std::string, Scenario>* scenarios) {
  (*scenarios)["receive_first"] = {[](Rank& r) {
                                     const absl::Status got = r.Recv(r.world, r.partner()).Wait();
                                     return got.ok() ? r.Send(r.world, r.partner()).Wait() : got;
                                   },
                                   {"recv(", "waits for rank"}};
  (*scenarios)["send_first"] = {[](Rank& r) {
                                  const absl::Status sent = r.Send(r.world, r.partner(), kLarge).Wait();
                                  return sent.ok() ? r.Recv(r.world, r.partner(), kLarge).Wait() : sent;
                                },
                                {"send(", "waits for rank"}};
  // Everybody sends to the next and takes the next for the one before.
  (*scenarios)["wrong_peer"] = {[](Rank& r) {
                                  const Work sent = r.Send(r.world, r.next());
                                  return Both(r.Recv(r.world, r.next()).Wait(), sent.status());
                                },
                                {"recv(", "ranks 0-3 wait for each other"}};
  (*scenarios)["two_groups"] = {[](Rank& r) {
                                  Communicator* const first = r.rank == 1 ? r.other : r.world;
                                  const absl::Status status = r.Sum(first).Wait();
                                  return status.ok() ? r.Sum(first == r.world ? r.other : r.world).Wait() : status;
                                },
                                {"; rank 1 is in all_reduce(", " of group ", "for rank 1"}};
  (*scenarios)["barrier_and_recv"] = {
      [](Rank& r) { return r.rank == 3 ? r.Recv(r.world, 0).Wait() : r.world->Barrier().Wait(); },
      {"barrier()", "recv(", "rank 3"}};
  (*scenarios)["batch"] = {[](Rank& r) {
                             comm::Batch batch(*r.world);
                             batch.Recv({r.out.data(), kSmall}, r.partner());
                             batch.Recv({r.out.data() + kSmall, kSmall}, r.partner());
                             return batch.Submit().Wait();
                           },
                           {"recv(", "waits for rank"}};
  (*scenarios)["itself"] = {[](Rank& r) { return r.Recv(r.world, r.rank).Wait(); }, {"waits for itself"}};
}

void AddOthers(std::map<std::string, Scenario>* scenarios) {
  (*scenarios)["slow"] = {[](Rank& r) {
    if (r.rank == 2) BeSlow();
    absl::Status status = r.Sum(r.world).Wait();
    if (r.rank == 1) BeSlow();
    for (int from = 0; from + 1 < r.size && status.ok(); ++from) {  // each waits for the one before
      if (r.rank == from) status = r.Send(r.other, from + 1).Wait();
      if (r.rank == from + 1) status = r.Recv(r.other, from).Wait();
    }
    return Both(status, r.world->Barrier().Wait());
  }};
  // For those who look at the job from outside, until it is ended.
  (*scenarios)["straggler"] = {[](Rank& r) {
    while (r.rank == 2) BeSlow();
    return r.world->Barrier().Wait();
  }};
  (*scenarios)["small_send_first"] = {[](Rank& r) {
    const absl::Status sent = r.Send(r.world, r.partner()).Wait();
    if (r.rank == 0) BeSlow();
    return Both(sent, r.Recv(r.world, r.partner()).Wait());
  }};
  (*scenarios)["deadline"] = {[](Rank& r) {
    const Work got = r.Recv(r.world, r.partner());
    Work waited = got;
    (void)waited.Wait(kSlow);
    const absl::Status sent = r.Send(r.world, r.partner()).Wait();
    return Both(sent, waited.Wait());
  }};
  (*scenarios)["thread"] = {[](Rank& r) { return WaitForAThread(r, BeSlow); }};
  // For example until it has read a file.
  (*scenarios)["sleeping_thread"] = {
      [](Rank& r) { return WaitForAThread(r, [] { std::this_thread::sleep_for(2 * kSlow); }); }};
  // The upper half waits for a message that the lower half sends when it hears from a third rank.
  (*scenarios)["callback"] = {[](Rank& r) {
    if (r.rank == 1) {
      BeSlow();
      return r.Send(r.other, 0).Wait();
    }
    if (r.rank == 2) {
      const absl::Status got = r.Recv(r.other, 0).Wait();
      return got.ok() ? r.Send(r.world, 0).Wait() : got;
    }
    if (r.rank != 0) return absl::OkStatus();
    Work sent;
    Work heard = r.Recv(r.other, 1);
    heard.Then([&](const absl::Status&) { sent = r.Send(r.other, 2); });
    const absl::Status got = r.Recv(r.world, 2).Wait();
    return Both(got, Both(heard.Wait(), sent.Wait()));
  }};
}

int Check(const Scenario& scenario, const absl::Status& status, double seconds) {
  int wrong = 0;
  const auto expect = [&](bool condition, const std::string& what) {
    if (condition) return;
    ++wrong;
    std::fprintf(stderr, "%s\n", what.c_str());
  };
  if (scenario.words.empty()) {
    expect(status.ok(), "no error was expected: " + status.ToString());
    return wrong;
  }
  expect(status.code() == absl::StatusCode::kFailedPrecondition, "another status code was expected");
  const std::string text(status.message());
  for (const std::string& word : scenario.words) {
    expect(text.find(word) != std::string::npos, "the error does not say '" + word + "': " + text);
  }
  expect(text.find("(deadlock)") != std::string::npos, "the error does not say that it is a deadlock: " + text);
  expect(text.find("deadlock_ranks.cc:") != std::string::npos, "the error names no call site: " + text);
  expect(seconds <= std::chrono::duration<double>(kPromise).count() * kSlack, "the error came late");
  return wrong;
}

int Run(const std::string& name) {
  std::map<std::string, Scenario> scenarios;
  AddDeadlocks(&scenarios);
  AddOthers(&scenarios);
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
  if (!world.ok() || (*world)->size() != 4) {
    std::fprintf(stderr, "%s\n", world.ok() ? "needs four ranks" : world.status().ToString().c_str());
    return 2;
  }
  auto other = (*world)->Duplicate();
  if (!other.ok()) {
    std::fprintf(stderr, "%s\n", other.status().ToString().c_str());
    return 2;
  }
  Rank rank;
  rank.world = world->get();
  rank.other = other->get();
  rank.rank = (*world)->rank();
  rank.size = (*world)->size();
  rank.in.resize(name == "send_first" ? kLarge : 2 * kSmall);
  rank.out.resize(rank.in.size());
  if (const absl::Status here = (*world)->Barrier().Wait(); !here.ok()) return 1;
  const auto start = steady_clock::now();
  const absl::Status status = found->second.run(rank);
  const std::chrono::duration<double> seconds = steady_clock::now() - start;
  std::printf("%s after %.3f s: %s\n", name.c_str(), seconds.count(), status.ToString().c_str());
  const int wrong = Check(found->second, status, seconds.count());
  // Nobody ends while others still want something of it.
  if (found->second.words.empty() && wrong == 0 && !(*world)->Barrier().Wait().ok()) return 1;
  other->reset();
  world->reset();
  (*job)->Finalize().IgnoreError();
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
