#include "tools/collperf/cost.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/reduce/non_finite.h"
#include "cohort/comm/types.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/tape/memory_hash.h"
#include "tools/collperf/layer_cost.h"
#include "tools/measure/clock.h"
#include "tools/measure/instruction_counter.h"
#include "tools/measure/statistics.h"
#include "tools/measure/text.h"

namespace cohort::collperf {
namespace {

using runtime::CallRecord;
using runtime::CallState;

constexpr int kBatches = 400;
constexpr int kBatch = 50;
constexpr double kMostNs = 50;               // of the layers that are bounded
constexpr uint64_t kMostInstructions = 850;  // of a repeated call whose peer's message is there

// Keeps the compiler from computing a value once, or not at all.
template <typename T>
void Keep(T& value) {
  asm volatile("" : "+m"(value) : : "memory");
}

// A signature and a record of the black box beside those of a call.
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

constexpr size_t kCheckedFloats = (size_t{1} << 20) / sizeof(float);
constexpr int kCheckTrials = 40;
constexpr int kCheckCounts = 15;

template <typename Check>
CheckCost MeasureCheck(std::string name, const std::vector<float>& memory, measure::InstructionCounter* counter,
                       const Check& check) {
  CheckCost cost{.name = std::move(name)};
  std::vector<double> trials;
  for (int trial = 0; trial < kCheckTrials; ++trial) {
    const uint64_t begin = measure::Ticks();
    uint64_t found = check(memory.data(), memory.size());
    Keep(found);
    trials.push_back(static_cast<double>(measure::Ticks() - begin) * measure::NanosecondsPerTick());
  }
  cost.gb_per_s = static_cast<double>(memory.size() * sizeof(float)) / measure::Median(trials);
  if (counter == nullptr) return cost;
  cost.instructions = std::numeric_limits<uint64_t>::max();
  for (int i = 0; i < kCheckCounts; ++i) {
    cost.instructions = std::min(cost.instructions, counter->Count([&] {
      uint64_t found = check(memory.data(), 2);
      Keep(found);
    }));
  }
  return cost;
}

std::vector<CheckCost> MeasureChecks(measure::InstructionCounter* counter) {
  const std::vector<float> memory(kCheckedFloats, 1.0f);
  return {MeasureCheck("--check nan: the search of an input", memory, counter,
                       [](const float* data, size_t count) -> uint64_t {
                         return comm::AllFinite(comm::DataType::kFloat32, data, count) ? 1 : 0;
                       }),
          MeasureCheck("--check results: the hash of a result", memory, counter,
                       [](const float* data, size_t count) -> uint64_t {
                         return runtime::HashMemory(data, count * sizeof(float));
                       })};
}

}  // namespace

absl::StatusOr<Cost> MeasureCost(RankSession& session) {
  Extra extra;
  Cost cost;
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
  cost.checks = MeasureChecks(count);
  return cost;
}

namespace {

std::string ChecksText(const std::vector<CheckCost>& checks) {
  std::string text = "# off unless asked for (COHORT_CHECK, under which this counts the whole call):\n";
  for (const CheckCost& check : checks) {
    text += "#   " + check.name + ": " + measure::Fixed(check.gb_per_s, 1) + " GB/s of 1 MiB";
    if (check.instructions > 0) text += ", " + std::to_string(check.instructions) + " instructions for 8 B";
    text += "\n";
  }
  return text;
}

}  // namespace

std::string CostText(const Cost& cost) {
  using measure::Fixed;
  const auto row = [](const std::string& name, const std::string& instructions, const std::string& ns) {
    char text[160];
    std::snprintf(text, sizeof text, "# %-56s %12s %10s\n", name.c_str(), instructions.c_str(), ns.c_str());
    return std::string(text);
  };
  const auto number = [](uint64_t count) { return count == 0 ? std::string("-") : std::to_string(count); };
  const auto bound = [](const std::string& most, bool met) {
    return " (at most " + most + ": " + (met ? "met" : "missed") + ")";
  };
  std::string text = row("all_reduce of 8 B, repeated, by layer", "instructions", "ns");
  uint64_t parts = 0;
  double bounded_ns = 0;
  for (const LayerCost& layer : cost.layers) {
    parts += layer.instructions;
    bounded_ns += layer.is_bounded ? layer.ns : 0;
    text += row(layer.name, number(layer.instructions), layer.ns > 0 ? Fixed(layer.ns, 1) : "-");
  }
  if (cost.call_instructions > parts) {
    text += row("the rest: arguments, steps, the way between the layers", number(cost.call_instructions - parts), "-");
  }
  text += row("the whole call; ns: back to back", number(cost.call_instructions), Fixed(cost.call_ns, 1));
  text += "# instructions are counted by: " + cost.counted_by;
  if (cost.call_instructions > 0) {
    text += "; the whole call: " + std::to_string(cost.call_instructions) +
            bound(std::to_string(kMostInstructions), cost.call_instructions <= kMostInstructions);
  }
  return text + "\n# signature and black box: " + Fixed(bounded_ns, 1) + " ns a call" +
         bound(Fixed(kMostNs, 0) + " ns", bounded_ns <= kMostNs) + "; a call with both done twice takes " +
         Fixed(cost.doubled_ns - cost.call_ns, 1) + " ns more\n" + ChecksText(cost.checks);
}

}  // namespace cohort::collperf
