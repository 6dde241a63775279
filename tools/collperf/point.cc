#include "tools/collperf/point.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/memory_limits.h"
#include "tools/measure/clock.h"
#include "tools/measure/gate.h"
#include "tools/measure/text.h"

namespace cohort::collperf {
namespace {

using measure::Operation;
using runtime::Work;

constexpr size_t kAlignment = 4096;
constexpr int64_t kFewestIterations = 10;
constexpr int kCheckedCalls = 2;

// One call on fixed memory.
struct Call {
  Session* session;
  comm::CallOptions options;
  Operation operation;
  comm::DataType dtype;
  comm::ReduceOp op;
  int root;
  int64_t count;
  char* in;
  char* out;
  int64_t in_count;
  int64_t out_count;
  int64_t messages = 1;  // of an exchange, under way at a time
  size_t in_bytes = 0;

  Work Start() const {
    comm::Communicator& world = session->world();
    const comm::ConstBuffer input(in, in_count, dtype);
    const comm::Buffer output(out, out_count, dtype);
    switch (operation) {
      case Operation::kBroadcast:
        return world.Broadcast(comm::Buffer(session->rank() == root ? in : out, count, dtype), root, options);
      case Operation::kReduce:
        return world.Reduce(input, output, op, root, options);
      case Operation::kAllReduce:
        return world.AllReduce(input, output, op, options);
      case Operation::kGather:
        return world.Gather(input, output, root, options);
      case Operation::kScatter:
        return world.Scatter(input, output, root, options);
      case Operation::kAllGather:
        return world.AllGather(input, output, options);
      case Operation::kReduceScatter:
        return world.ReduceScatter(input, output, op, options);
      case Operation::kAllToAll:
        return world.AllToAll(input, output, options);
      case Operation::kSendRecv:
      case Operation::kBarrier:
        break;
    }
    return world.Barrier(options);
  }
  absl::Status Exchange() const {
    const int ranks = session->ranks();
    comm::Communicator& world = session->world();
    std::vector<Work> works;
    for (int64_t i = 0; i < messages; ++i) {
      works.push_back(world.Send(comm::ConstBuffer(in, in_count, dtype), (session->rank() + 1) % ranks, options));
      works.push_back(world.Recv(comm::Buffer(out, out_count, dtype), (session->rank() + ranks - 1) % ranks, options));
    }
    absl::Status first;
    for (Work& work : works) first.Update(work.Wait());
    return first;
  }
  absl::Status Run() const { return operation == Operation::kSendRecv ? Exchange() : Start().Wait(); }
};

// Send and receive have two buffers in any case.
bool IsInPlace(const Options& options, Operation operation) {
  return options.in_place && operation != Operation::kSendRecv;
}

// Places input and output, by the rules of communicator.h for calls in place.
void Place(const Options& options, const Buffers& buffers, int64_t block_bytes, Call* call) {
  call->in = buffers.in();
  call->out = buffers.out();
  if (!IsInPlace(options, call->operation)) return;
  const int64_t own = block_bytes * call->session->rank();
  call->out = call->in;
  if (call->operation == Operation::kAllGather || (call->operation == Operation::kGather && call->out_count > 0)) {
    call->in += own;
  } else if (call->operation == Operation::kReduceScatter ||
             (call->operation == Operation::kScatter && call->in_count > 0)) {
    call->out += own;
  }
}

int64_t CountSpoilt(const Options& options, const measure::Pattern& pattern, const Call& call) {
  if (options.spoil && call.out_count > 0) call.out[0] = static_cast<char>(call.out[0] ^ 0x55);
  return measure::CountWrong(pattern, call.out);
}

// Wrong elements of all ranks in untimed calls, each on data of its own.
absl::StatusOr<int64_t> Check(const Options& options, measure::Pattern pattern, const Call& call) {
  uint64_t wrong = 0;
  for (int i = 0; i < kCheckedCalls; ++i) {
    pattern.seed = static_cast<uint32_t>(i);
    const size_t out_bytes = static_cast<size_t>(call.out_count) * static_cast<size_t>(pattern.type.bytes);
    measure::Poison(call.out, out_bytes);  // first: in place it is the input too
    measure::FillInput(pattern, call.in);
    COHORT_RETURN_IF_ERROR(call.Run());
    wrong += static_cast<uint64_t>(CountSpoilt(options, pattern, call));
  }
  COHORT_RETURN_IF_ERROR(call.session->gate().Sum(std::span(&wrong, 1)));
  return static_cast<int64_t>(wrong);
}

// A number between 0.5 and 2 in every floating-point type of two bytes and more.
constexpr int kRewrittenByte = 0x3f;

// Picoseconds of one batch of calls behind a gate, divided by their number and that of their messages.
absl::StatusOr<uint64_t> TimeOnce(const Options& options, const Call& call) {
  if (options.rewrite && call.in_bytes > 0) std::memset(call.in, kRewrittenByte, call.in_bytes);
  COHORT_RETURN_IF_ERROR(call.session->gate().Wait());
  const uint64_t begin = measure::Ticks();
  for (int64_t i = 0; i < options.batch; ++i) COHORT_RETURN_IF_ERROR(call.Run());
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

}  // namespace

void Buffers::Free::operator()(char* memory) const { std::free(memory); }

absl::StatusOr<Buffers> Buffers::Make(Session& session, const Options& options, Operation operation,
                                      int64_t block_bytes) {
  const bool is_root = session.rank() == options.root;
  const measure::Blocks blocks = measure::BlocksOf(operation, is_root, session.ranks());
  // No more than what the sum over all ranks can take: nobody has so much.
  const size_t most = std::numeric_limits<size_t>::max() / 4 / static_cast<size_t>(session.ranks());
  const auto bytes_of = [block_bytes, most](int count) {
    const auto block = static_cast<size_t>(block_bytes), blocks_of = static_cast<size_t>(count);
    return blocks_of == 0 || block <= most / blocks_of ? block * blocks_of : most;
  };
  size_t sizes[2] = {bytes_of(blocks.in), bytes_of(blocks.out)};
  if (IsInPlace(options, operation)) {
    sizes[0] = std::max(sizes[0], sizes[1]);
    sizes[1] = 0;
  }
  // Asked before anything is allocated, so that the ranks agree.
  uint64_t needed[1] = {sizes[0] + sizes[1]};
  COHORT_RETURN_IF_ERROR(session.gate().Sum(needed));
  uint64_t lacking[1] = {needed[0] / 10 * 11 > runtime::AvailableMemory() ? 1u : 0u};
  COHORT_RETURN_IF_ERROR(session.gate().Max(lacking));
  if (lacking[0] != 0) {
    return absl::ResourceExhaustedError("no memory for blocks of " +
                                        measure::BytesText(static_cast<double>(block_bytes)) + ": the ranks need " +
                                        measure::BytesText(static_cast<double>(needed[0])) + "; lower -e");
  }
  Buffers buffers;
  char* places[2] = {nullptr, nullptr};
  for (int i = 0; i < 2; ++i) {
    if (options.window) {
      COHORT_ASSIGN_OR_RETURN(comm::Window window, session.world().AllocateWindow(sizes[i]));
      places[i] = static_cast<char*>(window.data());
      buffers.windows_.push_back(static_cast<comm::Window&&>(window));
    } else {
      const size_t rounded = (std::max<size_t>(sizes[i], 1) + kAlignment - 1) / kAlignment * kAlignment;
      buffers.memory_.emplace_back(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)));
      places[i] = buffers.memory_.back().get();
      if (places[i] == nullptr)
        return absl::ResourceExhaustedError("no memory for " + std::to_string(rounded) + " bytes");
    }
  }
  buffers.in_ = places[0];
  buffers.out_ = places[1];
  return buffers;
}

absl::StatusOr<Result> Measure(Session& session, const Options& options, const Buffers& buffers, Operation operation,
                               const NamedType& type, const NamedOp& op, int64_t bytes) {
  const int64_t count = operation == Operation::kBarrier ? 0 : bytes / type.layout.bytes;
  const bool is_root = session.rank() == options.root;
  const measure::Blocks blocks = measure::BlocksOf(operation, is_root, session.ranks());
  Call call{.session = &session,
            .options = {.algorithm = options.algorithm, .determinism = options.determinism},
            .operation = operation,
            .dtype = type.dtype,
            .op = op.op,
            .root = options.root,
            .count = count,
            .in = nullptr,
            .out = nullptr,
            .in_count = count * blocks.in,
            .out_count = count * blocks.out,
            .messages = operation == Operation::kSendRecv ? options.messages : 1,
            .in_bytes = static_cast<size_t>(count * blocks.in * type.layout.bytes)};
  const int64_t block_bytes = count * type.layout.bytes;
  Place(options, buffers, block_bytes, &call);
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
    measure::FillInput(pattern, call.in);
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
  result.algorithm = operation == Operation::kSendRecv ? "point_to_point" : session.LatestAlgorithm();
  return result;
}

}  // namespace cohort::collperf
