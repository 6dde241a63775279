#include "tools/collperf/point.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"
#include "tools/collperf/call.h"
#include "tools/measure/flag_ping_pong.h"
#include "tools/measure/gate.h"
#include "tools/measure/timing.h"

namespace cohort::collperf {
namespace {

using measure::Operation;

constexpr int64_t kFewestIterations = 10;

// Places input and output, by the rules of communicator.h for calls in place.
void SetPlaces(const Options& options, const Buffers& buffers, const measure::Blocks& blocks, int64_t own_offset,
               CallSpec* call) {
  call->in = buffers.in();
  call->out = buffers.out();
  if (!IsInPlace(options, call->operation)) return;
  call->out = call->in;
  if (call->operation == Operation::kAllGather || (call->operation == Operation::kGather && blocks.out > 0)) {
    call->in = call->in + own_offset;
  } else if (call->operation == Operation::kReduceScatter ||
             (call->operation == Operation::kScatter && blocks.in > 0)) {
    call->out = call->out + own_offset;
  }
}

// Wrong elements of all ranks.
absl::StatusOr<int64_t> Check(const Options& options, const measure::Pattern& pattern, const Call& call,
                              measure::Gate& gate) {
  COHORT_ASSIGN_OR_RETURN(const int64_t own, measure::CountWrongOf(call, pattern, gate, options.spoil));
  auto wrong = static_cast<uint64_t>(own);
  COHORT_RETURN_IF_ERROR(gate.Sum(std::span(&wrong, 1)));
  return static_cast<int64_t>(wrong);
}

// Warms up for no longer than a point takes, and returns how many calls to time; the same number on all ranks.
absl::StatusOr<int64_t> WarmUpAndCountCalls(const Options& options, const measure::Timing& timing, const Call& call,
                                            measure::Gate& gate) {
  const double budget_ps = static_cast<double>(options.point_ms) * 1e9;
  const int64_t planned = std::max<int64_t>(options.warmup, options.iterations == 0 ? 3 : 0);
  COHORT_ASSIGN_OR_RETURN(const measure::Pace pace, measure::WarmUp(call, timing, gate, planned, budget_ps / 2));
  if (options.iterations > 0) return options.iterations;
  const double took = pace.mean_ps * static_cast<double>(timing.batch * timing.messages);
  const double fit = budget_ps / std::max(took + 500'000, 1.0);  // half a microsecond for the gate
  return std::clamp<int64_t>(static_cast<int64_t>(fit), kFewestIterations, measure::kMostNumbers);
}

// Picoseconds of this rank to microseconds of the slowest.
absl::StatusOr<measure::Summary> Summarize(measure::Gate& gate, std::vector<uint64_t> samples) {
  COHORT_RETURN_IF_ERROR(gate.Max(samples));
  std::vector<double> us;
  us.reserve(samples.size());
  for (const uint64_t sample : samples) us.push_back(static_cast<double>(sample) / 1e6);
  return measure::Summarize(us);
}

// `fast` is the call that it is compared with, or null. Notes the algorithm too, before the gate's own calls.
absl::Status TimeAll(RankSession& session, const measure::Timing& timing, const Call& call, const Call* fast,
                     Result* result) {
  measure::Gate& gate = session.gate();
  std::vector<uint64_t> samples(static_cast<size_t>(result->iterations));
  std::vector<uint64_t> fast_samples(fast == nullptr ? 0 : samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    if (fast != nullptr) {
      COHORT_ASSIGN_OR_RETURN(fast_samples[i], measure::TimeOnce(*fast, timing, gate));
    }
    COHORT_ASSIGN_OR_RETURN(samples[i], measure::TimeOnce(call, timing, gate));
  }
  result->algorithm = result->operation == Operation::kSendRecv ? "point_to_point" : session.LatestAlgorithm();
  COHORT_ASSIGN_OR_RETURN(result->us, Summarize(gate, std::move(samples)));
  if (fast == nullptr) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(const measure::Summary compared, Summarize(gate, std::move(fast_samples)));
  result->fast_us = compared.median;
  return absl::OkStatus();
}

void ComputeBandwidths(int ranks, Result* result) {
  if (result->us.median <= 0) return;
  const double total = measure::TotalBytes(result->operation, ranks, static_cast<double>(result->bytes));
  result->algbw = total / (result->us.median * 1e3);
  result->busbw = result->algbw * measure::BusFactor(result->operation, ranks);
}

// How calls on a device's memory are served; empty on host memory. Collective.
absl::StatusOr<std::string_view> DeviceService(RankSession& session, const Options& options, Operation operation,
                                               const NamedType& type, const NamedOp& op) {
  if (session.device() == nullptr) return "";
  if (!options.algorithm.empty()) return "staged";  // the only one that can be forced
  if (!measure::Reduces(operation)) return session.DeviceService(comm::CollectiveKind::kAllGather, type.dtype);
  // NCCL serves neither these nor 16-bit integers: asked for these, it says the same.
  const bool by_kernels = comm::IsBitwise(op.op) || options.determinism == comm::Determinism::kOrderInvariant;
  return session.DeviceService(comm::CollectiveKind::kAllReduce, by_kernels ? comm::DataType::kInt16 : type.dtype);
}

}  // namespace

absl::StatusOr<Result> Measure(RankSession& session, const Options& options, const Buffers& buffers,
                               Operation operation, const NamedType& type, const NamedOp& op, int64_t bytes) {
  const int64_t count = measure::HasBlocks(operation) ? bytes / type.layout.bytes : 0;
  const bool is_root = session.rank() == options.root;
  const measure::Blocks blocks = measure::BlocksOf(operation, is_root, session.ranks());
  COHORT_ASSIGN_OR_RETURN(const std::string_view service, DeviceService(session, options, operation, type, op));
  CallSpec spec{
      .group = &session.world(),
      .device = session.device(),
      .options = {.algorithm = options.algorithm, .determinism = options.determinism, .stream = session.stream()},
      .operation = operation,
      .dtype = type.dtype,
      .op = op.op,
      .root = options.root,
      .count = count,
      .messages = operation == Operation::kSendRecv ? options.messages : 1,
      .staged = service == "staged"};
  const int64_t block_bytes = count * type.layout.bytes;
  SetPlaces(options, buffers, blocks, block_bytes * session.rank(), &spec);
  const Call call(spec);
  const measure::Timing timing{.batch = options.batch, .messages = spec.messages, .rewrite = options.rewrite};
  measure::Gate& gate = session.gate();
  const measure::Pattern pattern{.operation = operation,
                                 .fold = op.fold,
                                 .type = type.layout,
                                 .ranks = session.ranks(),
                                 .rank = session.rank(),
                                 .root = options.root,
                                 .count = count,
                                 .seed = 0};
  Result result{.operation = operation,
                .ranks = session.ranks(),
                .system = session.device() != nullptr ? "cuda"
                          : options.window            ? "window"
                                                      : "private",
                .bytes = block_bytes,
                .count = count,
                .type = measure::HasBlocks(operation) ? std::string(type.layout.name) : "-",
                .op = measure::Reduces(operation) ? std::string(comm::Name(op.op)) : "-",
                .root = measure::IsRooted(operation) ? options.root : -1,
                .rewritten = options.rewrite,
                .messages = spec.messages};
  if (options.check) {
    COHORT_ASSIGN_OR_RETURN(result.wrong, Check(options, pattern, call, gate));
  } else {
    measure::FillInput(pattern, spec.in.host);
    COHORT_RETURN_IF_ERROR(call.Upload());
  }
  spec.options.determinism = comm::Determinism::kFast;
  const Call fast(spec);
  const bool compares = options.determinism != comm::Determinism::kFast && measure::Reduces(operation);
  if (compares) COHORT_RETURN_IF_ERROR(WarmUpAndCountCalls(options, timing, fast, gate).status());
  COHORT_ASSIGN_OR_RETURN(result.iterations, WarmUpAndCountCalls(options, timing, call, gate));
  COHORT_ASSIGN_OR_RETURN(result.flag_before_ns, gate.FlagNs());
  COHORT_RETURN_IF_ERROR(TimeAll(session, timing, call, compares ? &fast : nullptr, &result));
  COHORT_ASSIGN_OR_RETURN(result.flag_after_ns, gate.FlagNs());
  if (result.flag_before_ns > 0 && result.flag_after_ns > 0) {
    result.placement = measure::PlacementOf(result.flag_before_ns, result.flag_after_ns);
  }
  ComputeBandwidths(session.ranks(), &result);
  if (!service.empty()) result.algorithm = service;
  return result;
}

}  // namespace cohort::collperf
