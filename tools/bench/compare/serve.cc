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
#include "tools/bench/compare/session_memory.h"
#include "tools/bench/compare/system.h"
#include "tools/measure/clock.h"
#include "tools/measure/pattern.h"
#include "tools/measure/shared_memory.h"

namespace cohort::bench {
namespace {

using measure::Operation;
using runtime::Deadline;

constexpr size_t kAlignment = 4096;
constexpr int kCheckedCalls = 2;
constexpr int kWarmupCalls = 5;
constexpr uint64_t kWarmupPs = 100'000'000'000;  // no more calls after 0.1 s

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
    const uint64_t begin = measure::Ticks();
    Arithmetic(kSteps);
    least = std::min(least, measure::Ticks() - begin);
  }
  return kSteps / (static_cast<double>(least) * measure::NanosecondsPerTick() / 1000);
}

// One rank of one system.
class Server {
 public:
  Server(System& system, SessionMemory* session, int ranks, int place)
      : system_(system),
        session_(session),
        slot_(session->slots[place]),
        memory_(GateOf(session, ranks, place)),
        gate_(memory_, system.rank(), ranks, measure::GateSpins(ranks)) {
    gate_.set_idle([&system] {
      system.Progress();
      return absl::OkStatus();
    });
  }

  // False at the end.
  bool ServeOne();

 private:
  void AwaitCommand();
  std::string CarryOut(const Command& command);
  std::string RunAll(const Command& command);
  void Rewrite(const Command& command, int call);
  std::string Prepare(const Command& command);
  std::string Check(const Command& command);
  std::string WarmUp(const Command& command);
  std::string Time(const Command& command, uint64_t* ps);
  SystemCall CallOf(const Command& command) const;
  measure::Pattern PatternOf(const Command& command) const;

  System& system_;
  SessionMemory* session_;
  SystemSlot& slot_;
  measure::GateMemory* memory_;
  measure::SharedMemoryGate gate_;
  uint32_t seen_ = 0;
  void* in_[kVariants] = {};
  void* out_[kVariants] = {};
};

void Server::AwaitCommand() {
  while (slot_.commands.load(std::memory_order_acquire) == seen_) {
    runtime::FutexWait(slot_.commands, seen_, runtime::FutexScope::kShared, Deadline::After(std::chrono::seconds(2)));
    // The conductor may have been killed.
    if (kill(session_->conductor, 0) != 0) std::_Exit(1);
  }
  ++seen_;
}

bool Server::ServeOne() {
  AwaitCommand();
  const Command command = session_->command;
  const std::string error = CarryOut(command);
  if (!error.empty()) {
    if (slot_.failures.fetch_add(1) == 0) std::snprintf(slot_.error, sizeof slot_.error, "%s", error.c_str());
    gate_.Break();
  }
  slot_.answers.fetch_add(1, std::memory_order_release);
  runtime::FutexWake(slot_.answers, runtime::FutexScope::kShared);
  return command.action != Action::kExit;
}

std::string Server::CarryOut(const Command& command) {
  switch (command.action) {
    case Action::kPrepare:
      return Prepare(command);
    case Action::kRun:
      return RunAll(command);
    case Action::kRelease:
      system_.Release(command.variant);
      return "";
    case Action::kExit:
      break;
  }
  return "";
}

// The timed calls, between two measurements of the flag, which use the gate's rows themselves.
std::string Server::RunAll(const Command& command) {
  std::vector<uint64_t> took(static_cast<size_t>(command.calls));
  const absl::StatusOr<double> before = gate_.FlagNs();
  if (!before.ok()) return std::string(before.status().message());
  for (int i = 0; i < command.calls; ++i) {
    if (command.rewrites) Rewrite(command, i);
    if (std::string error = Time(command, &took[static_cast<size_t>(i)]); !error.empty()) return error;
  }
  const absl::StatusOr<double> after = gate_.FlagNs();
  if (!after.ok()) return std::string(after.status().message());
  std::copy(took.begin(), took.end(), memory_->rows[system_.rank()].numbers);
  slot_.flag_before_ps.store(static_cast<uint64_t>(*before * 1000));
  slot_.flag_after_ps.store(static_cast<uint64_t>(*after * 1000));
  return "";
}

void Server::Rewrite(const Command& command, int call) {
  const measure::Blocks blocks = measure::BlocksOf(command.operation, system_.rank() == command.root, system_.ranks());
  const int64_t count = command.bytes * blocks.in / static_cast<int64_t>(sizeof(float));
  std::fill_n(static_cast<float*>(in_[command.variant]), count, static_cast<float>(call % 64));
}

SystemCall Server::CallOf(const Command& command) const {
  return {.operation = command.operation,
          .in = static_cast<const float*>(in_[command.variant]),
          .out = static_cast<float*>(out_[command.variant]),
          .count = command.bytes / static_cast<int64_t>(sizeof(float)),
          .root = command.root,
          .variant = command.variant,
          .messages = command.messages,
          .compute_us = command.compute_us};
}

measure::Pattern Server::PatternOf(const Command& command) const {
  return {.operation = command.operation,
          .type = *measure::FindElementType("float32"),
          .ranks = system_.ranks(),
          .rank = system_.rank(),
          .root = command.root,
          .count = command.bytes / static_cast<int64_t>(sizeof(float)),
          .seed = 0};
}

std::string Server::Prepare(const Command& command) {
  const measure::Blocks blocks = measure::BlocksOf(command.operation, system_.rank() == command.root, system_.ranks());
  const int variant = command.variant;
  in_[variant] = system_.Allocate(variant, 0, command.bytes * blocks.in);
  out_[variant] = system_.Allocate(variant, 1, command.bytes * blocks.out);
  if ((blocks.in > 0 && in_[variant] == nullptr) || (blocks.out > 0 && out_[variant] == nullptr)) {
    return "no memory for the buffers";
  }
  std::string error = Check(command);
  return error.empty() ? WarmUp(command) : error;
}

// Fresh data, poisoned outputs, every element.
std::string Server::Check(const Command& command) {
  measure::Pattern pattern = PatternOf(command);
  const SystemCall call = CallOf(command);
  const measure::Blocks blocks = measure::BlocksOf(command.operation, system_.rank() == command.root, system_.ranks());
  for (int i = 0; i < kCheckedCalls; ++i) {
    pattern.seed = static_cast<uint32_t>(i);
    measure::FillInput(pattern, in_[command.variant]);
    measure::Poison(out_[command.variant], static_cast<size_t>(command.bytes * blocks.out));
    if (absl::Status status = gate_.Wait(); !status.ok()) return std::string(status.message());
    if (std::string error = system_.Run(call); !error.empty()) return error;
    slot_.wrong.fetch_add(static_cast<uint64_t>(measure::CountWrong(pattern, out_[command.variant])));
  }
  return "";
}

// The same number of calls on all ranks: each sees the slowest rank's time.
std::string Server::WarmUp(const Command& command) {
  uint64_t best = ~uint64_t{0};
  uint64_t total = 0;
  for (int i = 0; i < kWarmupCalls && (i < 2 || total < kWarmupPs); ++i) {
    uint64_t took = 0;
    if (std::string error = Time(command, &took); !error.empty()) return error;
    if (absl::Status status = gate_.Max(std::span(&took, 1)); !status.ok()) return std::string(status.message());
    best = std::min(best, took);
    total += took;
  }
  slot_.estimate_ps.store(best);
  return "";
}

std::string Server::Time(const Command& command, uint64_t* ps) {
  const SystemCall call = CallOf(command);
  if (absl::Status status = gate_.Wait(); !status.ok()) return std::string(status.message());
  const uint64_t begin = measure::Ticks();
  std::string error = system_.Run(call);
  *ps = static_cast<uint64_t>(static_cast<double>(measure::Ticks() - begin) * measure::NanosecondsPerTick() * 1000);
  return error;
}

}  // namespace

void Compute(double us) {
  static const double steps = MeasureStepsPerMicrosecond();
  Arithmetic(static_cast<int64_t>(us * steps));
}

void* System::Allocate(int variant, int buffer, int64_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  memory_[variant][buffer] = std::aligned_alloc(kAlignment, rounded);
  return memory_[variant][buffer];
}

void System::Release(int variant) {
  for (void*& memory : memory_[variant]) {
    std::free(memory);
    memory = nullptr;
  }
}

int Serve(System& system, const std::string& path, int ranks, int place) {
  const auto memory = measure::SharedMemory::Open(path, SessionBytes(ranks));
  if (!memory.ok() || system.ranks() != ranks || place < 0 || place >= kMostSystems) {
    std::fprintf(stderr, "a rank of a comparison cannot join it: %s\n",
                 memory.ok() ? "another number of ranks" : std::string(memory.status().message()).c_str());
    return 1;
  }
  Server server(system, static_cast<SessionMemory*>((*memory)->data()), ranks, place);
  Compute(0);  // measures its pace while nothing is timed
  auto& slot = static_cast<SessionMemory*>((*memory)->data())->slots[place];
  slot.answers.fetch_add(1);  // here
  runtime::FutexWake(slot.answers, runtime::FutexScope::kShared);
  while (server.ServeOne()) {
  }
  return 0;
}

}  // namespace cohort::bench
