#include "tools/measure/system_rank.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "cohort/runtime/base/futex.h"
#include "cohort/runtime/base/status_macros.h"
#include "tools/measure/clock.h"
#include "tools/measure/pattern.h"
#include "tools/measure/session_memory.h"
#include "tools/measure/shared_memory.h"
#include "tools/measure/timing.h"

namespace cohort::measure {
namespace {

using runtime::Deadline;

constexpr size_t kAlignment = 4096;
constexpr int kWarmupCalls = 5;
constexpr double kWarmupPs = 1e11;  // no more calls after 0.1 s

// A chain of dependent multiplications and additions.
void Arithmetic(int64_t steps) {
  volatile double sink = 1;
  double value = sink;
  for (int64_t i = 0; i < steps; ++i) value = value * 0.999 + 0.5;
  sink = value;
}

// Steps of it in a microsecond: those of the quickest of some stretches.
double MeasureStepsPerMicrosecond() {
  constexpr int kStretches = 20;
  constexpr int64_t kSteps = 20'000;
  uint64_t least = ~uint64_t{0};
  for (int i = 0; i < kStretches; ++i) {
    const uint64_t begin = Ticks();
    Arithmetic(kSteps);
    least = std::min(least, Ticks() - begin);
  }
  return kSteps / (static_cast<double>(least) * NanosecondsPerTick() / 1000);
}

// A command's call, on buffers of the system's making.
class CommandedCall final : public MeasuredCall {
 public:
  CommandedCall(SystemRank& system, const Command& command, void* in, void* out)
      : system_(system),
        call_{.operation = command.operation,
              .in = static_cast<const float*>(in),
              .out = static_cast<float*>(out),
              .count = command.bytes / static_cast<int64_t>(sizeof(float)),
              .root = command.root,
              .variant = command.variant,
              .messages = command.messages,
              .compute_us = command.compute_us} {
    const Blocks blocks = BlocksOf(command.operation, system.rank() == command.root, system.ranks());
    memory_ = {in, static_cast<size_t>(command.bytes * blocks.in), out,
               static_cast<size_t>(command.bytes * blocks.out)};
  }
  absl::Status Run(int64_t calls) const override {
    for (int64_t i = 0; i < calls; ++i) {
      if (const std::string error = system_.Run(call_); !error.empty()) return absl::InternalError(error);
    }
    return absl::OkStatus();
  }
  Memory memory() const override { return memory_; }

 private:
  SystemRank& system_;
  SystemCall call_;
  Memory memory_;
};

// One rank of one system.
class Server {
 public:
  Server(SystemRank& system, SessionMemory* session, int ranks, int slot)
      : system_(system),
        session_(session),
        shared_(session->slots[slot]),
        memory_(GateOf(session, ranks, slot)),
        gate_(memory_, system.rank(), ranks, GateSpins(ranks)) {
    gate_.set_idle([&system] {
      system.Progress();
      return absl::OkStatus();
    });
  }

  // False at the end.
  bool ServeOne();

 private:
  void AwaitCommand();
  absl::Status CarryOut(const Command& command);
  absl::Status Prepare(const Command& command);
  absl::Status RunAll(const Command& command);
  CommandedCall CallOf(const Command& command) {
    return CommandedCall(system_, command, in_[command.variant], out_[command.variant]);
  }

  SystemRank& system_;
  SessionMemory* session_;
  SystemSlot& shared_;  // by the conductor and the ranks of this system
  GateMemory* memory_;
  SharedMemoryGate gate_;
  uint32_t seen_ = 0;
  void* in_[kVariants] = {};
  void* out_[kVariants] = {};
};

void Server::AwaitCommand() {
  while (shared_.commands.load(std::memory_order_acquire) == seen_) {
    runtime::FutexWait(shared_.commands, seen_, runtime::FutexScope::kShared, Deadline::After(std::chrono::seconds(2)));
    // The conductor may have been killed.
    if (kill(session_->conductor, 0) != 0) std::_Exit(1);
  }
  ++seen_;
}

bool Server::ServeOne() {
  AwaitCommand();
  const Command command = session_->command;
  if (const absl::Status status = CarryOut(command); !status.ok()) {
    const std::string error(status.message());
    if (shared_.failures.fetch_add(1) == 0) std::snprintf(shared_.error, sizeof shared_.error, "%s", error.c_str());
    gate_.Break();
  }
  shared_.answers.fetch_add(1, std::memory_order_release);
  runtime::FutexWake(shared_.answers, runtime::FutexScope::kShared);
  return command.action != Action::kExit;
}

absl::Status Server::CarryOut(const Command& command) {
  switch (command.action) {
    case Action::kPrepare:
      return Prepare(command);
    case Action::kRun:
      return RunAll(command);
    case Action::kRelease:
      system_.Release(command.variant);
      break;
    case Action::kExit:
      break;
  }
  return absl::OkStatus();
}

absl::Status Server::Prepare(const Command& command) {
  const Blocks blocks = BlocksOf(command.operation, system_.rank() == command.root, system_.ranks());
  const int variant = command.variant;
  in_[variant] = system_.Allocate(variant, 0, command.bytes * blocks.in);
  out_[variant] = system_.Allocate(variant, 1, command.bytes * blocks.out);
  if ((blocks.in > 0 && in_[variant] == nullptr) || (blocks.out > 0 && out_[variant] == nullptr)) {
    return absl::ResourceExhaustedError("no memory for the buffers");
  }
  const CommandedCall call = CallOf(command);
  const Pattern pattern{.operation = command.operation,
                        .type = *FindElementType("float32"),
                        .ranks = system_.ranks(),
                        .rank = system_.rank(),
                        .root = command.root,
                        .count = command.bytes / static_cast<int64_t>(sizeof(float))};
  COHORT_ASSIGN_OR_RETURN(const int64_t wrong, CountWrongOf(call, pattern, gate_));
  shared_.wrong.fetch_add(static_cast<uint64_t>(wrong));
  COHORT_ASSIGN_OR_RETURN(const Pace pace, WarmUp(call, {}, gate_, kWarmupCalls, kWarmupPs));
  shared_.estimate_ps.store(static_cast<uint64_t>(pace.least_ps));
  return absl::OkStatus();
}

// The timed calls, between two measurements of the flag, which use the gate's rows themselves.
absl::Status Server::RunAll(const Command& command) {
  const CommandedCall call = CallOf(command);
  std::vector<uint64_t> took(static_cast<size_t>(command.calls));
  COHORT_ASSIGN_OR_RETURN(const double before, gate_.FlagNs());
  for (uint64_t& sample : took) {
    COHORT_ASSIGN_OR_RETURN(sample, TimeOnce(call, {.rewrite = command.rewrites}, gate_));
  }
  COHORT_ASSIGN_OR_RETURN(const double after, gate_.FlagNs());
  std::copy(took.begin(), took.end(), memory_->rows[system_.rank()].numbers);
  shared_.flag_before_ps.store(static_cast<uint64_t>(before * 1000));
  shared_.flag_after_ps.store(static_cast<uint64_t>(after * 1000));
  return absl::OkStatus();
}

}  // namespace

void Compute(double us) {
  static const double steps = MeasureStepsPerMicrosecond();
  Arithmetic(static_cast<int64_t>(us * steps));
}

void* SystemRank::Allocate(int variant, int buffer, int64_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  memory_[variant][buffer] = std::aligned_alloc(kAlignment, rounded);
  return memory_[variant][buffer];
}

void SystemRank::Release(int variant) {
  for (void*& memory : memory_[variant]) {
    std::free(memory);
    memory = nullptr;
  }
}

int Serve(SystemRank& system, const std::string& path, int ranks, int slot) {
  const auto memory = SharedMemory::Open(path, SessionBytes(ranks));
  if (!memory.ok() || system.ranks() != ranks || slot < 0 || slot >= kMostSystems) {
    std::fprintf(stderr, "a rank of a comparison cannot join it: %s\n",
                 memory.ok() ? "another number of ranks" : std::string(memory.status().message()).c_str());
    return 1;
  }
  Server server(system, static_cast<SessionMemory*>((*memory)->data()), ranks, slot);
  Compute(0);  // measures its pace while nothing is timed
  auto& shared = static_cast<SessionMemory*>((*memory)->data())->slots[slot];
  shared.answers.fetch_add(1);  // here
  runtime::FutexWake(shared.answers, runtime::FutexScope::kShared);
  while (server.ServeOne()) {
  }
  return 0;
}

}  // namespace cohort::measure
