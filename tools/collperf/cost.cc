#include "tools/collperf/cost.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/segment/layout.h"
#include "tools/collperf/layer_cost.h"
#include "tools/measure/clock.h"
#include "tools/measure/instruction_counter.h"
#include "tools/measure/statistics.h"
#include "tools/measure/text.h"

namespace cohort::collperf {
namespace {

using runtime::CallRecord;
using runtime::CallState;

constexpr int kLoops = 200'000;
constexpr int kTrials = 7;
constexpr int kBatches = 400;
constexpr int kBatch = 50;
constexpr double kTargetNs = 50;
constexpr uint64_t kTargetInstructions = 800;

// Keeps the compiler from computing a value once, or not at all.
template <typename T>
void Keep(T& value) {
  asm volatile("" : "+m"(value) : : "memory");
}

template <typename Work>
double NanosecondsOf(Work work) {
  std::vector<double> trials;
  for (int trial = 0; trial < kTrials; ++trial) {
    const uint64_t begin = measure::Ticks();
    for (int i = 0; i < kLoops; ++i) work(i);
    trials.push_back(static_cast<double>(measure::Ticks() - begin) * measure::NanosecondsPerTick() / kLoops);
  }
  return measure::Median(trials);
}

// The work of a call for the two nets, on its own records.
class Extra {
 public:
  Extra() : memory_(std::make_unique<runtime::BlackBoxMemory>()), writer_(memory_.get()) {
    record_.signature.kind = 3;
    record_.signature.count = 2;
    record_.bytes = 8;
    const char site[] = "train.cc:88";
    std::copy(site, site + sizeof site, record_.site);
  }
  void Sign(uint64_t sequence) {
    record_.signature.sequence = sequence;
    Keep(record_);
    const uint64_t own = runtime::HashSignature(record_.signature);
    peer_ = own;
    Keep(peer_);
    differing_ += own != peer_ ? 1 : 0;
  }
  void Record() {
    Keep(record_);
    const uint64_t ticket = writer_.Start(record_, &description_);
    writer_.Finish(ticket, CallState::kDone);
  }

 private:
  std::unique_ptr<runtime::BlackBoxMemory> memory_;
  runtime::BlackBoxWriter writer_;
  CallRecord record_;
  runtime::CallDescription description_;
  uint64_t peer_ = 0;
  uint64_t differing_ = 0;
};

}  // namespace

absl::StatusOr<Cost> MeasureCost(Session& session) {
  Extra extra;
  Cost cost;
  cost.signature_ns = NanosecondsOf([&extra](int i) { extra.Sign(static_cast<uint64_t>(i)); });
  cost.black_box_ns = NanosecondsOf([&extra](int) { extra.Record(); });

  float in[2] = {1, 2};
  float out[2] = {};
  std::vector<double> plain;
  std::vector<double> doubled;
  for (int batch = 0; batch < 2 * kBatches; ++batch) {
    const bool twice = batch % 2 == 1;
    COHORT_RETURN_IF_ERROR(session.gate().Wait());
    const uint64_t begin = measure::Ticks();
    for (int i = 0; i < kBatch; ++i) {
      if (twice) {
        extra.Sign(static_cast<uint64_t>(i));
        extra.Record();
      }
      COHORT_RETURN_IF_ERROR(
          session.world().AllReduce(comm::ConstBuffer(in, 2), comm::Buffer(out, 2), comm::ReduceOp::kSum).Wait());
    }
    const double ns = static_cast<double>(measure::Ticks() - begin) * measure::NanosecondsPerTick() / kBatch;
    (twice ? doubled : plain).push_back(ns);
  }
  cost.call_ns = measure::Median(plain);
  cost.doubled_ns = measure::Median(doubled);
  const absl::StatusOr<std::unique_ptr<measure::InstructionCounter>> counter = measure::InstructionCounter::Make();
  cost.counted_by = counter.ok() ? (*counter)->method() : std::string(counter.status().message());
  measure::InstructionCounter* const count = counter.ok() ? counter->get() : nullptr;
  COHORT_ASSIGN_OR_RETURN(cost.layers, MeasureLayers(session, count));
  COHORT_ASSIGN_OR_RETURN(cost.call_instructions, CountCall(session, count));
  return cost;
}

std::string CostText(const Cost& cost) {
  using measure::Fixed;
  const auto row = [](const std::string& name, const std::string& instructions, const std::string& ns) {
    char text[160];
    std::snprintf(text, sizeof text, "# %-56s %12s %10s\n", name.c_str(), instructions.c_str(), ns.c_str());
    return std::string(text);
  };
  const auto number = [](uint64_t count) { return count == 0 ? std::string("-") : std::to_string(count); };
  std::string layers = row("all_reduce of 8 B, repeated, by layer", "instructions", "ns");
  uint64_t parts = 0;
  for (const LayerCost& layer : cost.layers) {
    parts += layer.instructions;
    layers += row(layer.name, number(layer.instructions), layer.ns > 0 ? Fixed(layer.ns, 1) : "-");
  }
  if (cost.call_instructions > parts) {
    layers +=
        row("the rest: arguments, steps, the way between the layers", number(cost.call_instructions - parts), "-");
  }
  layers += row("the whole call; ns: back to back", number(cost.call_instructions), Fixed(cost.call_ns, 1));
  layers += "# instructions: " + cost.counted_by +
            (cost.call_instructions == 0 ? ""
                                         : std::string("; target: at most 800 where the peer's message is there: ") +
                                               (cost.call_instructions <= kTargetInstructions ? "met" : "missed")) +
            "\n";
  return layers + "# signature " + Fixed(cost.signature_ns, 1) + " ns + black box " + Fixed(cost.black_box_ns, 1) +
         " ns = " + Fixed(cost.signature_ns + cost.black_box_ns, 1) +
         " ns a call, in a loop of their own (target: 50 ns together, by this method: " +
         (cost.signature_ns + cost.black_box_ns <= kTargetNs ? "met" : "missed") +
         ")\n# for comparison, all_reduce of 8 B back to back: " + Fixed(cost.call_ns, 1) +
         " ns; with both done twice: " + Fixed(cost.doubled_ns, 1) +
         " ns; difference: " + Fixed(cost.doubled_ns - cost.call_ns, 1) + " ns\n";
}

}  // namespace cohort::collperf
