// Pairs of calls that do not match, 200 of them, in one job of four ranks: run as `dlaunch --nproc-per-node 4 --
// <this>` or on two nodes. In every case the odd ranks make one call and the others another one, on a group of the
// case's own; then each must hold an error that names both kinds and both call sites. Half of the cases are calls of
// which no message ever meets one of the other: everybody sends to, or waits for, somebody who does not take part.
//
// The promise is 200 ms from the call to the error; asserted at ten times that. Prints the distribution, and exits with
// 1 and what it saw otherwise.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <numeric>
#include <source_location>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::CollectiveKind;
using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using comm::Work;

constexpr std::chrono::milliseconds kPromise{200};
constexpr int kSlack = 10;
constexpr int64_t kMaxCount = 20'000;

struct Call {
  CollectiveKind kind = CollectiveKind::kBarrier;
  int64_t count = 0;
  int root = -1;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

struct Case {
  Call odd;
  Call others;
  uint32_t odd_ranks = 0;  // a bit for each
  bool never_meets = false;
};

// The odd rank gathers at itself and the others at another rank, so everybody waits for a message that nobody sends; or
// it broadcasts from itself and the others from another rank, so that all succeed and nobody has read what was sent.
void AddThatNeverMeet(std::vector<Case>* cases) {
  constexpr CollectiveKind kUp[] = {CollectiveKind::kGather, CollectiveKind::kReduce};
  constexpr CollectiveKind kDown[] = {CollectiveKind::kBroadcast, CollectiveKind::kScatter};
  for (const auto& kinds : {kUp, kDown}) {
    for (int odd = 0; odd < 4; ++odd) {
      for (int other = 0; other < 4; ++other) {
        if (other == odd) continue;
        for (int pair = 0; pair < 4; ++pair) {
          Case the_case;
          the_case.odd = {kinds[pair / 2], 1 + 7 * odd, odd};
          the_case.others = {kinds[pair % 2], 1 + 7 * odd, other};
          the_case.odd_ranks = 1u << odd;
          the_case.never_meets = true;
          cases->push_back(the_case);
        }
      }
    }
  }
  for (int odd = 0; odd < 4; ++odd) {  // the same at a size that goes through other buffers
    cases->push_back(
        {{CollectiveKind::kGather, 5'000, odd}, {CollectiveKind::kReduce, 5'000, (odd + 1) % 4}, 1u << odd, true});
  }
}

void AddThatMeet(size_t wanted, std::vector<Case>* cases) {
  const Call base = {CollectiveKind::kAllReduce, 100};
  std::vector<Call> calls = {base, {base.kind, 101}, {base.kind, 0}, {base.kind, kMaxCount}};
  calls.push_back({base.kind, 100, -1, DataType::kInt32});
  calls.push_back({base.kind, 50, -1, DataType::kFloat64});
  calls.push_back({base.kind, 100, -1, DataType::kFloat32, ReduceOp::kMax});
  calls.push_back({CollectiveKind::kAllGather, 100});
  calls.push_back({CollectiveKind::kAllGather, 4'000});
  calls.push_back({CollectiveKind::kReduceScatter, 100});
  calls.push_back({CollectiveKind::kAllToAll, 100});
  calls.push_back({CollectiveKind::kAllToAll, 3'000});
  calls.push_back({CollectiveKind::kBarrier, 0});
  calls.push_back({CollectiveKind::kBroadcast, 100, 1});
  calls.push_back({CollectiveKind::kReduce, 100, 2});
  std::vector<Case> all;
  for (size_t i = 0; i < calls.size(); ++i) {
    for (size_t j = 0; j < calls.size(); ++j) {
      const uint32_t who = (i * 5 + j * 3) % 14 + 1;  // one to three of the four
      if (i != j) all.push_back({calls[i], calls[j], who, false});
    }
  }
  for (size_t i = 0; i < wanted; ++i) cases->push_back(all[i * all.size() / wanted]);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  AddThatNeverMeet(&cases);
  AddThatMeet(200 - cases.size(), &cases);
  return cases;
}

comm::CallOptions Bounded() {
  comm::CallOptions options;
  options.timeout = std::chrono::seconds(20);
  return options;
}

class Memory {
 public:
  Work Make(Communicator& group, const Call& call, std::source_location site) {
    const int64_t count = call.count;
    const int64_t blocks = count * group.size();
    const comm::CallOptions options = Bounded();
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        return group.AllReduce(In(call, count), Out(call, count), call.op, options, site);
      case CollectiveKind::kReduce:
        return group.Reduce(In(call, count), Out(call, count), call.op, call.root, options, site);
      case CollectiveKind::kBroadcast:
        return group.Broadcast(Out(call, count), call.root, options, site);
      case CollectiveKind::kGather:
        return group.Gather(In(call, count), Out(call, blocks), call.root, options, site);
      case CollectiveKind::kScatter:
        return group.Scatter(In(call, blocks), Out(call, count), call.root, options, site);
      case CollectiveKind::kAllGather:
        return group.AllGather(In(call, count), Out(call, blocks), options, site);
      case CollectiveKind::kReduceScatter:
        return group.ReduceScatter(In(call, blocks), Out(call, count), call.op, options, site);
      case CollectiveKind::kAllToAll:
        return group.AllToAll(In(call, blocks), Out(call, blocks), options, site);
      default:
        return group.Barrier(options, site);
    }
  }

 private:
  comm::ConstBuffer In(const Call& call, int64_t count) const { return {in_.data(), count, call.dtype}; }
  comm::Buffer Out(const Call& call, int64_t count) { return {out_.data(), count, call.dtype}; }

  std::vector<double> in_ = std::vector<double>(4 * kMaxCount, 1.0);
  std::vector<double> out_ = std::vector<double>(4 * kMaxCount);
};

std::string Describe(const Call& call) {
  std::string text(comm::Name(call.kind));
  text += "(" + std::to_string(call.count) + " " + std::string(comm::Name(call.dtype));
  if (call.root >= 0) text += ", root " + std::to_string(call.root);
  return text + ")";
}

// Returns the defect of `status` as the answer to the case; empty: none.
std::string Judge(const Case& the_case, const absl::Status& status, uint32_t odd_line, uint32_t other_line) {
  if (status.code() != absl::StatusCode::kFailedPrecondition) return "it is no kFailedPrecondition";
  const std::string text(status.message());
  for (const Call& call : {the_case.odd, the_case.others}) {
    if (text.find(comm::Name(call.kind)) == std::string::npos) return "it does not say " + Describe(call);
  }
  for (const uint32_t line : {odd_line, other_line}) {
    const std::string site = "mismatch_matrix.cc:" + std::to_string(line);
    if (text.find(site) == std::string::npos) return "it does not name the call at " + site;
  }
  return "";
}

// One case on this rank; false when what it saw is wrong.
bool RunCase(Communicator& world, const Case& the_case, int number, Memory* memory, double* milliseconds) {
  std::vector<int> everyone(static_cast<size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto group = world.Subgroup(everyone);
  absl::Status status = group.ok() ? world.Barrier().Wait() : group.status();
  if (!status.ok()) {
    std::fprintf(stderr, "case %d could not begin: %s\n", number, status.ToString().c_str());
    return false;
  }
  const bool odd = the_case.odd_ranks >> world.rank() & 1;
  const auto start = std::chrono::steady_clock::now();
  std::source_location odd_site = std::source_location::current();
  std::source_location other_site = std::source_location::current();
  status = memory->Make(**group, odd ? the_case.odd : the_case.others, odd ? odd_site : other_site).Wait();
  // A rank whose part was over before the calls were known to differ gets the error at its next call.
  if (status.ok()) status = (*group)->Barrier(Bounded()).Wait();
  *milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  std::string wrong = Judge(the_case, status, odd_site.line(), other_site.line());
  if (*milliseconds > kSlack * static_cast<double>(kPromise.count())) {
    wrong += " it came after " + std::to_string(*milliseconds) + " ms";
  }
  if (wrong.empty()) return true;
  std::fprintf(stderr, "case %d, rank %d, %s against %s%s: %s: %s\n", number, world.rank(),
               Describe(the_case.odd).c_str(), Describe(the_case.others).c_str(),
               the_case.never_meets ? ", which never meet" : "", wrong.c_str(), status.ToString().c_str());
  return false;
}

void Print(const char* what, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  std::printf("%s: %zu cases, error after: median %.1f ms, 90 %% %.1f ms, longest %.1f ms (promise: %d ms)\n", what,
              times.size(), times[times.size() / 2], times[times.size() * 9 / 10], times.back(),
              static_cast<int>(kPromise.count()));
}

int64_t ProcessCpuNs() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// A peer that is late is no mismatch, and waiting for it costs the others next to nothing: 1 % of a CPU is the promise,
// asserted at ten times that. The first seconds cost most: then the ranks ask most often.
int RunLate(Communicator& world) {
  constexpr std::chrono::nanoseconds kLate = std::chrono::seconds(3);
  constexpr int64_t kMostCpuNs = kLate.count() / 100 * kSlack;
  float in = 1;
  float out = 0;
  const int64_t before = ProcessCpuNs();
  if (world.rank() == 1) std::this_thread::sleep_for(kLate);
  const absl::Status status = world.AllReduce({&in, 1}, {&out, 1}, ReduceOp::kSum).Wait();
  const int64_t used = ProcessCpuNs() - before;
  if (!status.ok() || out != static_cast<float>(world.size())) {
    std::fprintf(stderr, "rank %d: %s\n", world.rank(), status.ToString().c_str());
    return 1;
  }
  std::printf("rank %d: %.2f %% of a CPU in 3 s\n", world.rank(), 100.0 * static_cast<double>(used) / kLate.count());
  return used <= kMostCpuNs ? 0 : 1;
}

int Run(bool late) {
  auto job = runtime::Runtime::Init();
  auto world = job.ok() ? Communicator::World(**job) : absl::StatusOr<std::unique_ptr<Communicator>>(job.status());
  if (!world.ok() || (*world)->size() != 4) {
    std::fprintf(stderr, "%s\n", world.ok() ? "needs four ranks" : world.status().ToString().c_str());
    return 2;
  }
  if (late) return RunLate(**world);
  const std::vector<Case> cases = Cases();
  Memory memory;
  int wrong = 0;
  std::vector<double> met;
  std::vector<double> never_met;
  for (size_t i = 0; i < cases.size(); ++i) {
    double milliseconds = 0;
    if (!RunCase(**world, cases[i], static_cast<int>(i), &memory, &milliseconds)) ++wrong;
    // The figure of a case is its slowest rank's.
    const absl::Status status = (*world)->AllReduce({&milliseconds, 1}, {&milliseconds, 1}, ReduceOp::kMax).Wait();
    if (!status.ok()) {
      std::fprintf(stderr, "after case %zu: %s\n", i, status.ToString().c_str());
      return 1;
    }
    (cases[i].never_meets ? never_met : met).push_back(milliseconds);
  }
  if ((*world)->rank() == 0) {
    Print("calls that meet", met);
    Print("calls that never meet", never_met);
  }
  world->reset();
  const absl::Status end = (*job)->Finalize();
  if (!end.ok()) std::fprintf(stderr, "reported twice: %s\n", end.ToString().c_str());
  return wrong == 0 && end.ok() ? 0 : 1;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return cohort::Run(argc > 1 && std::string(argv[1]) == "late"); }
