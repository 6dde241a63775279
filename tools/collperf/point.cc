#include "tools/collperf/point.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"
#include "tools/collperf/call.h"
#include "tools/measure/clock.h"
#include "tools/measure/gate.h"

namespace cohort::collperf {
namespace {

using measure::Operation;

constexpr int64_t kFewestIterations = 10;
constexpr int kCheckedCalls = 2;

// Places input and output, by the rules of communicator.h for calls in place.
void SetPlaces(const Options& options, const Buffers& buffers, int64_t block_bytes, Call* call) {
  call->in = buffers.in();
  call->out = buffers.out();
  if (!IsInPlace(options, call->operation)) return;
  const int64_t own = block_bytes * call->session->rank();
  call->out = call->in;
  if (call->operation == Operation::kAllGather || (call->operation == Operation::kGather && call->out_count > 0)) {
    call->in = call->in + own;
  } else if (call->operation == Operation::kReduceScatter ||
             (call->operation == Operation::kScatter && call->in_count > 0)) {
    call->out = call->out + own;
  }
}

int64_t CountSpoilt(const Options& options, const measure::Pattern& pattern, const Call& call) {
  char* const out = call.out.host;
  if (options.spoil && call.out_count > 0) out[0] = static_cast<char>(out[0] ^ 0x55);
  return measure::CountWrong(pattern, out);
}

// Wrong elements of all ranks in untimed calls, each on data of its own.
absl::StatusOr<int64_t> Check(const Options& options, measure::Pattern pattern, const Call& call) {
  uint64_t wrong = 0;
  for (int i = 0; i < kCheckedCalls; ++i) {
    pattern.seed = static_cast<uint32_t>(i);
    measure::Poison(call.out.host, call.out_bytes());  // first: in place it is the input too
    measure::FillInput(pattern, call.in.host);
    COHORT_RETURN_IF_ERROR(call.Upload());
    COHORT_RETURN_IF_ERROR(call.Run());
    COHORT_RETURN_IF_ERROR(call.Download());
    wrong += static_cast<uint64_t>(CountSpoilt(options, pattern, call));
  }
  COHORT_RETURN_IF_ERROR(call.session->gate().Sum(std::span(&wrong, 1)));
  return static_cast<int64_t>(wrong);
}

// A number between 0.5 and 2 in every floating-point type of two bytes and more.
constexpr int kRewrittenByte = 0x3f;

// Picoseconds of one batch of calls behind a gate, divided by their number and that of their messages.
absl::StatusOr<uint64_t> TimeOnce(const Options& options, const Call& call) {
  if (options.rewrite && call.in_count > 0) std::memset(call.in.host, kRewrittenByte, call.in_bytes());
  COHORT_RETURN_IF_ERROR(call.session->gate().Wait());
  const uint64_t begin = measure::Ticks();
  COHORT_RETURN_IF_ERROR(call.Run(options.batch));
  const auto ticks = static_cast<double>(measure::Ticks() - begin);
  return static_cast<uint64_t>(ticks * measure::NanosecondsPerTick() * 1000 /
                               static_cast<double>(options.batch * call.messages));
}

// Warms up for no longer than a point takes, and returns how many calls to time; the same number on all ranks.
absl::StatusOr<int64_t> WarmUp(const Options& options, const Call& call) {
  const double budget_ps = static_cast<double>(options.point_ms) * 1e9;
  const int64_t planned = std::max<int64_t>(options.warmup, options.iterations == 0 ? 3 : 0);
  uint64_t total = 0;
  int64_t done = 0;
  while (done < planned) {
    COHORT_ASSIGN_OR_RETURN(uint64_t took, TimeOnce(options, call));
    COHORT_RETURN_IF_ERROR(call.session->gate().Max(std::span(&took, 1)));
    total += took;
    ++done;
    if (done >= 3 && static_cast<double>(total) > budget_ps / 2) break;
  }
  if (options.iterations > 0) return options.iterations;
  const double mean =
      static_cast<double>(total) / static_cast<double>(done) * static_cast<double>(options.batch * call.messages);
  const double fit = budget_ps / std::max(mean + 500'000, 1.0);  // half a microsecond for the gate
  return std::clamp<int64_t>(static_cast<int64_t>(fit), kFewestIterations, measure::kMostNumbers);
}

// Picoseconds of this rank to microseconds of the slowest.
absl::StatusOr<measure::Summary> Summarize(Session& session, std::vector<uint64_t> samples) {
  COHORT_RETURN_IF_ERROR(session.gate().Max(samples));
  std::vector<double> us;
  us.reserve(samples.size());
  for (const uint64_t sample : samples) us.push_back(static_cast<double>(sample) / 1e6);
  return measure::Summarize(us);
}

// `fast` is the call that it is compared with, or null.
absl::Status TimeAll(const Options& options, const Call& call, const Call* fast, int64_t iterations, Result* result) {
  std::vector<uint64_t> samples(static_cast<size_t>(iterations));
  std::vector<uint64_t> fast_samples(fast == nullptr ? 0 : samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    if (fast != nullptr) {
      COHORT_ASSIGN_OR_RETURN(fast_samples[i], TimeOnce(options, *fast));
    }
    COHORT_ASSIGN_OR_RETURN(samples[i], TimeOnce(options, call));
  }
  COHORT_ASSIGN_OR_RETURN(result->us, Summarize(*call.session, std::move(samples)));
  if (fast == nullptr) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(const measure::Summary compared, Summarize(*call.session, std::move(fast_samples)));
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
absl::StatusOr<std::string_view> DeviceService(Session& session, const Options& options, Operation operation,
                                               const NamedType& type, const NamedOp& op) {
  if (session.device() == nullptr) return "";
  if (!options.algorithm.empty()) return "staged";  // the only one that can be forced
  if (!measure::Reduces(operation)) return session.DeviceService(comm::CollectiveKind::kAllGather, type.dtype);
  // NCCL serves neither these nor 16-bit integers: asked for these, it says the same.
  const bool by_kernels = comm::IsBitwise(op.op) || options.determinism == comm::Determinism::kOrderInvariant;
  return session.DeviceService(comm::CollectiveKind::kAllReduce, by_kernels ? comm::DataType::kInt16 : type.dtype);
}

}  // namespace

absl::StatusOr<Result> Measure(Session& session, const Options& options, const Buffers& buffers, Operation operation,
                               const NamedType& type, const NamedOp& op, int64_t bytes) {
  const int64_t count = operation == Operation::kBarrier ? 0 : bytes / type.layout.bytes;
  const bool is_root = session.rank() == options.root;
  const measure::Blocks blocks = measure::BlocksOf(operation, is_root, session.ranks());
  COHORT_ASSIGN_OR_RETURN(const std::string_view service, DeviceService(session, options, operation, type, op));
  Call call{.session = &session,
            .options = {.algorithm = options.algorithm, .determinism = options.determinism, .stream = session.stream()},
            .operation = operation,
            .dtype = type.dtype,
            .op = op.op,
            .root = options.root,
            .count = count,
            .in = {},
            .out = {},
            .in_count = count * blocks.in,
            .out_count = count * blocks.out,
            .messages = operation == Operation::kSendRecv ? options.messages : 1,
            .staged = service == "staged"};
  const int64_t block_bytes = count * type.layout.bytes;
  SetPlaces(options, buffers, block_bytes, &call);
  const measure::Pattern pattern{.operation = operation,
                                 .fold = op.fold,
                                 .type = type.layout,
                                 .ranks = session.ranks(),
                                 .rank = session.rank(),
                                 .root = options.root,
                                 .count = count,
                                 .seed = 0};
  Result result{.operation = operation,
                .bytes = block_bytes,
                .count = count,
                .type = operation == Operation::kBarrier ? "-" : std::string(type.layout.name),
                .op = measure::Reduces(operation) ? std::string(comm::Name(op.op)) : "-",
                .root = measure::IsRooted(operation) ? options.root : -1};
  if (options.check) {
    COHORT_ASSIGN_OR_RETURN(result.wrong, Check(options, pattern, call));
  } else {
    measure::FillInput(pattern, call.in.host);
    COHORT_RETURN_IF_ERROR(call.Upload());
  }
  Call fast = call;
  fast.options.determinism = comm::Determinism::kFast;
  const bool compares = options.determinism != comm::Determinism::kFast && measure::Reduces(operation);
  if (compares) COHORT_RETURN_IF_ERROR(WarmUp(options, fast).status());
  COHORT_ASSIGN_OR_RETURN(result.iterations, WarmUp(options, call));
  COHORT_ASSIGN_OR_RETURN(result.flag_before_ns, session.gate().FlagNs());
  COHORT_RETURN_IF_ERROR(TimeAll(options, call, compares ? &fast : nullptr, result.iterations, &result));
  COHORT_ASSIGN_OR_RETURN(result.flag_after_ns, session.gate().FlagNs());
  ComputeBandwidths(session.ranks(), &result);
  result.algorithm = !service.empty()                    ? std::string(service)
                     : operation == Operation::kSendRecv ? "point_to_point"
                                                         : session.LatestAlgorithm();
  return result;
}

}  // namespace cohort::collperf
