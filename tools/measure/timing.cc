#include "tools/measure/timing.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "cohort/runtime/base/status_macros.h"
#include "tools/measure/clock.h"

namespace cohort::measure {
namespace {

constexpr int kCheckedCalls = 2;
constexpr int64_t kFewestSamples = 3;  // of a warm-up
// A number between 0.5 and 2 in every floating-point type of two bytes and more.
constexpr int kRewrittenByte = 0x3f;

}  // namespace

absl::StatusOr<int64_t> CountWrongOf(const MeasuredCall& call, Pattern pattern, Gate& gate, bool spoil) {
  const MeasuredCall::Memory memory = call.memory();
  int64_t wrong = 0;
  for (int i = 0; i < kCheckedCalls; ++i) {
    pattern.seed = static_cast<uint32_t>(i);
    Poison(memory.out, memory.out_bytes);  // first: in place it is the input too
    FillInput(pattern, memory.in);
    COHORT_RETURN_IF_ERROR(call.Upload());
    COHORT_RETURN_IF_ERROR(gate.Wait());
    COHORT_RETURN_IF_ERROR(call.Run(1));
    COHORT_RETURN_IF_ERROR(call.Download());
    auto* const out = static_cast<char*>(memory.out);
    if (spoil && memory.out_bytes > 0) out[0] = static_cast<char>(out[0] ^ 0x55);
    wrong += CountWrong(pattern, out);
  }
  return wrong;
}

absl::StatusOr<uint64_t> TimeOnce(const MeasuredCall& call, const Timing& timing, Gate& gate) {
  if (timing.rewrite) {
    const MeasuredCall::Memory memory = call.memory();
    if (memory.in_bytes > 0) std::memset(memory.in, kRewrittenByte, memory.in_bytes);
  }
  COHORT_RETURN_IF_ERROR(gate.Wait());
  const uint64_t begin = Ticks();
  COHORT_RETURN_IF_ERROR(call.Run(timing.batch));
  const auto ticks = static_cast<double>(Ticks() - begin);
  return static_cast<uint64_t>(ticks * NanosecondsPerTick() * 1000 /
                               static_cast<double>(timing.batch * timing.messages));
}

absl::StatusOr<Pace> WarmUp(const MeasuredCall& call, const Timing& timing, Gate& gate, int64_t samples,
                            double most_ps) {
  Pace pace;
  double total = 0;
  int64_t done = 0;
  while (done < samples && (done < kFewestSamples || total < most_ps)) {
    COHORT_ASSIGN_OR_RETURN(uint64_t took, TimeOnce(call, timing, gate));
    COHORT_RETURN_IF_ERROR(gate.Max(std::span(&took, 1)));
    const auto ps = static_cast<double>(took);
    pace.least_ps = done == 0 ? ps : std::min(pace.least_ps, ps);
    total += ps;
    pace.mean_ps = total / static_cast<double>(++done);
  }
  return pace;
}

}  // namespace cohort::measure
