// The ranks of nccl_test.cc and nccl_twin_test.cc: a program that uses NCCL (a stand-in) without Cohort, as RANK of
// WORLD_SIZE. With `cohort` for VERSION its twin, which makes the same calls over Cohort: hang, mismatch, slow, leave.
//   SCENARIO FOLDER [VERSION] [SECONDS]
//   calls      all-reduces, a broadcast, a reduce-scatter of half the ranks, messages; prints the number of calls
//   hang       rank 1 never makes the fourth call
//   mismatch   rank 2 makes another fourth call
//   slow       rank 3 comes 1.5 s late to each call
//   abort      as hang, and the watchdog aborts the communicator before it ends the rank
//   leave      rank 1 ends in order instead of the fourth call
//   takeover   calls of NCCL, then of Cohort, whose runtime joins, then of NCCL again
//   beside     the runtime of Cohort joins first
//   chaos      thousands of communicators, handles that mean nothing, stops of what has stopped
// FOLDER is empty at first. The ranks' kernels meet in a file there. When FOLDER/over exists, or a call takes SECONDS
// (15), a rank that waits in a call ends with 1, as a watchdog would end it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/segment.h"
#include "tests/support/profiled_nccl.h"

namespace cohort {
namespace {

using std::chrono::milliseconds;
using testing::ProfiledNccl;

constexpr int kMostRanks = 16;
constexpr size_t kCount = 256;

int Number(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// How far each rank has come in a communicator, and in which call it is.
struct Meeting {
  std::atomic<uint64_t> begun[kMostRanks];
  std::atomic<uint64_t> call[kMostRanks];
};

Meeting* MapMeeting(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Meeting)) != 0) std::exit(3);
  void* const memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) std::exit(3);
  return static_cast<Meeting*>(memory);
}

bool IsOver(const std::string& folder) { return access((folder + "/over").c_str(), F_OK) == 0; }

class Program {
 public:
  Program(std::string folder, int version, std::chrono::seconds limit, bool aborts = false)
      : folder_(std::move(folder)),
        limit_(limit),
        aborts_(aborts),
        rank_(Number("RANK", 0)),
        size_(Number("WORLD_SIZE", 1)),
        nccl_(std::getenv("NCCL_PROFILER_PLUGIN") == nullptr ? "" : std::getenv("NCCL_PROFILER_PLUGIN"), version),
        world_(nccl_.Init(0x5eed, size_, rank_)),
        world_meeting_(MapMeeting(folder_ + "/world")) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  const ProfiledNccl& nccl() const { return nccl_; }
  ProfiledNccl& nccl() { return nccl_; }
  uint64_t calls() const { return calls_; }
  void Destroy() { nccl_.Destroy(world_); }

  void Call(const char* function) { Call(world_, world_meeting_, function); }

  // A call of the ranks that are even, or of those that are odd.
  void CallOfHalf(const char* function) {
    const ProfiledNccl::Communicator half =
        nccl_.Init(0xab0 + static_cast<uint64_t>(rank_ % 2), (size_ + 1 - rank_ % 2) / 2, rank_ / 2);
    Call(half, MapMeeting(folder_ + "/half" + std::to_string(rank_ % 2)), function);
    nccl_.Destroy(half);
  }

  // A send and a receive around the ring, in one kernel.
  void PassOn() {
    ProfiledNccl::Call send{.function = "Send", .count = kCount, .root_or_peer = (rank_ + 1) % size_};
    ProfiledNccl::Call receive{.function = "Recv", .count = kCount, .root_or_peer = (rank_ + size_ - 1) % size_};
    for (ProfiledNccl::Call* const call : {&send, &receive}) nccl_.Launch(world_, call);
    for (ProfiledNccl::Call* const call : {&send, &receive}) nccl_.BeginKernel(world_, call);
    Meet(world_, world_meeting_, "messages");
    for (ProfiledNccl::Call* const call : {&send, &receive}) nccl_.EndKernel(call);
    calls_ += 2;
  }

 private:
  bool Over() const { return IsOver(folder_); }

  void Call(const ProfiledNccl::Communicator& communicator, Meeting* meeting, const char* function) {
    ProfiledNccl::Call call{.function = function, .count = kCount, .channels = 2};
    nccl_.Launch(communicator, &call);
    nccl_.BeginKernel(communicator, &call);
    Meet(communicator, meeting, function);
    nccl_.EndKernel(&call);
    ++calls_;
  }

  // Returns when all ranks of the communicator are in the same call.
  void Meet(const ProfiledNccl::Communicator& communicator, Meeting* meeting, const char* function) const {
    const uint64_t own = std::hash<std::string_view>()(function);
    meeting->call[communicator.rank].store(own);
    const uint64_t number = meeting->begun[communicator.rank].fetch_add(1) + 1;
    const auto limit = std::chrono::steady_clock::now() + limit_;
    const auto has_come = [meeting, number, own](int rank) {
      const uint64_t begun = meeting->begun[rank].load();
      return begun > number || (begun == number && meeting->call[rank].load() == own);
    };
    for (int rank = 0; rank < communicator.size;) {
      if (has_come(rank)) {
        ++rank;
        continue;
      }
      if (Over() || std::chrono::steady_clock::now() > limit) {
        std::fprintf(stderr, "watchdog: %s has timed out\n", function);
        if (aborts_) nccl_.Destroy(communicator);  // before its kernels have ended
        std::_Exit(1);
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  const std::string folder_;
  const std::chrono::seconds limit_;
  const bool aborts_;
  const int rank_;
  const int size_;
  ProfiledNccl nccl_;
  const ProfiledNccl::Communicator world_;
  Meeting* const world_meeting_;
  uint64_t calls_ = 0;
};

int MakeCalls(Program& program) {
  for (int i = 0; i < 200; ++i) {
    program.Call("AllReduce");
    std::this_thread::sleep_for(milliseconds(1));
  }
  program.Call("Broadcast");
  program.CallOfHalf("ReduceScatter");
  program.PassOn();
  std::printf("calls %llu\n", static_cast<unsigned long long>(program.calls()));
  program.Destroy();
  return 0;
}

int TakeOver(Program& program) {
  for (int i = 0; i < 5; ++i) program.Call("AllReduce");
  const auto runtime = runtime::Runtime::Init();
  if (!runtime.ok()) {
    std::fprintf(stderr, "%s\n", std::string(runtime.status().message()).c_str());
    return 2;
  }
  const auto world = comm::Communicator::World(**runtime);
  std::vector<float> data(4, 1);
  for (int i = 0; i < 5 && world.ok(); ++i) {
    if (!(*world)->AllReduce(data, data, comm::ReduceOp::kSum).Wait().ok()) return 2;
    program.Call("AllReduce");
  }
  std::printf("calls %llu\n", static_cast<unsigned long long>((*runtime)->segment().black_box().latest()));
  return (*runtime)->Finalize().ok() ? 0 : 2;
}

size_t PeakKibibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss);
}

int MakeChaos(Program& program) {
  ProfiledNccl& nccl = program.nccl();
  nccl.PassNulls();
  std::vector<ProfiledNccl::Communicator> communicators;
  const auto make = [&](uint64_t first, int count) {
    for (int i = 0; i < count; ++i) {
      communicators.push_back(nccl.Init(first + static_cast<uint64_t>(i), program.size() + 1, program.rank()));
    }
  };
  make(1000, 5000);
  std::mt19937_64 random(static_cast<uint64_t>(program.rank()));
  const auto call_at_random = [&](int calls) {
    for (int i = 0; i < calls; ++i) {
      const ProfiledNccl::Communicator& communicator = communicators[random() % communicators.size()];
      ProfiledNccl::Call call{.function = random() % 2 == 0 ? "AllReduce" : "Send",
                              .count = random(),
                              .root_or_peer = static_cast<int>(random() % 100),
                              .channels = static_cast<int>(random() % 70)};
      nccl.Launch(communicator, &call);
      nccl.BeginKernel(communicator, &call);
      if (random() % 4 != 0) nccl.EndKernel(&call);
      for (void* const kernel : call.kernels) nccl.Stop(kernel);
      nccl.Stop(call.handle);
      nccl.Stop(reinterpret_cast<void*>(static_cast<uintptr_t>(random() >> random() % 64)));
      nccl.Start(communicator.context, random() % 10'000, call.handle, nullptr, nullptr);
    }
  };
  call_at_random(5'000);
  const size_t before = PeakKibibytes();
  call_at_random(50'000);
  for (const ProfiledNccl::Communicator& communicator : communicators) nccl.Destroy(communicator);
  for (const ProfiledNccl::Communicator& communicator : communicators) nccl.Destroy(communicator);
  communicators.clear();
  make(100'000, 5000);
  const size_t grown = PeakKibibytes() - before;
  std::printf("chaos over, %s\n", grown < 16'384 ? "memory is bounded" : std::to_string(grown).c_str());
  return 0;
}

// Six calls, one of which goes wrong. `call` returns false where the rank cannot go on.
int MakeSteps(const std::string& scenario, const std::string& folder, int rank,
              const std::function<bool(const char* function)>& call) {
  std::printf("up\n");
  std::fflush(stdout);
  for (int i = 1; i <= 6; ++i) {
    if (scenario == "slow" && rank == 3) std::this_thread::sleep_for(milliseconds(1500));
    if ((scenario == "hang" || scenario == "abort") && rank == 1 && i == 4) {
      while (!IsOver(folder)) std::this_thread::sleep_for(milliseconds(5));
    }
    if (scenario == "leave" && rank == 1 && i == 4) {
      std::this_thread::sleep_for(milliseconds(1500));  // the plug-in has then told which rank this is
      return 0;
    }
    if (!call(scenario == "mismatch" && rank == 2 && i == 4 ? "Broadcast" : "AllReduce")) return 1;
  }
  return 0;
}

int RunOverCohort(const std::string& scenario, const std::string& folder, std::chrono::seconds limit) {
  const auto runtime = runtime::Runtime::Init();
  if (!runtime.ok()) return 2;
  const auto world = comm::Communicator::World(**runtime);
  if (!world.ok()) return 2;
  std::vector<float> data(kCount, 1);
  const comm::CallOptions options{.timeout = limit};
  return MakeSteps(scenario, folder, (*runtime)->rank(), [&](const char* function) {
    const absl::Status status = std::string_view(function) == "Broadcast"
                                    ? (*world)->Broadcast(data, 0, options).Wait()
                                    : (*world)->AllReduce(data, data, comm::ReduceOp::kSum, options).Wait();
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return status.ok();
  });
}

int Run(const std::string& scenario, const std::string& folder, int version, std::chrono::seconds limit) {
  if (scenario == "beside") {
    const auto runtime = runtime::Runtime::Init();
    if (!runtime.ok()) return 2;
    const Program program(folder, version, limit);
    std::printf("mask %llu\n", static_cast<unsigned long long>(program.nccl().mask()));
    return (*runtime)->Finalize().ok() ? 0 : 2;
  }
  Program program(folder, version, limit, scenario == "abort");
  if (scenario == "calls") return MakeCalls(program);
  if (scenario == "takeover") return TakeOver(program);
  if (scenario == "chaos") return MakeChaos(program);
  return MakeSteps(scenario, folder, program.rank(), [&program](const char* function) {
    program.Call(function);
    return true;
  });
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string version = argc > 3 ? argv[3] : "5";
  const std::chrono::seconds limit(argc > 4 ? std::atoi(argv[4]) : 15);
  if (version == "cohort") return cohort::RunOverCohort(argv[1], argv[2], limit);
  return cohort::Run(argv[1], argv[2], std::atoi(version.c_str()), limit);
}
