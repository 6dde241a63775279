#include "tools/collperf/layer_cost.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "cohort/comm/group/call_memo.h"
#include "cohort/comm/group/call_recorder.h"
#include "cohort/comm/group/make_call.h"
#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/transport/shm/runtime_binding.h"
#include "cohort/comm/transport/shm/shm_transport.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/layout.h"
#include "tools/measure/clock.h"
#include "tools/measure/statistics.h"

namespace cohort::collperf {
namespace {

constexpr int kLayerLoops = 20'000;
constexpr int kLayerTrials = 7;
constexpr int kCounts = 15;  // of which the least is taken: now and then a call does a little more
constexpr uint64_t kLayerGroup = 0x6c61'7965'7263'6f73;  // of the links that are measured by themselves

struct Operands {
  float in[2] = {1, 2};
  float out[2] = {};
};

template <typename Work>
LayerCost Alone(std::string name, measure::InstructionCounter* counter, Work work) {
  LayerCost cost{.name = std::move(name)};
  std::vector<double> trials;
  for (int trial = 0; trial < kLayerTrials; ++trial) {
    const uint64_t begin = measure::Ticks();
    for (int i = 0; i < kLayerLoops; ++i) work();
    trials.push_back(static_cast<double>(measure::Ticks() - begin) * measure::NanosecondsPerTick() / kLayerLoops);
  }
  cost.ns = measure::Median(trials);
  if (counter == nullptr) return cost;
  cost.instructions = std::numeric_limits<uint64_t>::max();
  for (int i = 0; i < kCounts; ++i) cost.instructions = std::min(cost.instructions, counter->Count(work));
  return cost;
}

// The fan-out of a group of its own among all ranks, and its short streams.
class FanoutOfAll {
 public:
  absl::Status Connect(RankSession& session) {
    transport_ = comm::MakeShmTransport(session.runtime(), {});
    comm::FanoutSpec spec{.group = kLayerGroup, .epoch = 1, .group_rank = session.rank(), .world_ranks = {}, .lane = 0};
    for (int rank = 0; rank < session.ranks(); ++rank) spec.world_ranks.push_back(rank);
    COHORT_ASSIGN_OR_RETURN(fanout_, transport_->ConnectFanout(spec));
    rank_ = session.rank();
    ranks_ = session.ranks();
    // The first message attaches each reader; an operation must do it.
    comm::SendOperation send;
    send.signature = 1;
    if (fanout_->TryPublish(send) != comm::Progress::kDone)
      return absl::InternalError("the first message was not sent");
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      comm::RecvOperation recv;
      recv.signature = 1;
      comm::Progress progress;
      while ((progress = fanout_->TryRecv(peer, recv)) == comm::Progress::kBlocked) {
        if (absl::Status lost = session.world().status(); !lost.ok()) return lost;
      }
      if (progress != comm::Progress::kDone) return recv.error;
    }
    return absl::OkStatus();
  }
  bool Send(const Operands& operands) {
    comm::SendOperation& send = send_;
    send.data = reinterpret_cast<const std::byte*>(operands.in);
    send.bytes = sizeof operands.in;
    send.signature = 1;
    const bool sent = fanout_->TryPublishQuietly(send) == comm::Progress::kDone;
    if (sent) send.state = nullptr;
    fanout_->Wake();
    return sent;
  }
  void Receive(int peer, Operands& operands) {
    recv_.data = reinterpret_cast<std::byte*>(operands.out);
    recv_.operand = reinterpret_cast<const std::byte*>(operands.in);
    recv_.reduce = kernel_;
    recv_.element_bytes = sizeof operands.in[0];
    recv_.bytes = sizeof operands.in;
    recv_.signature = 1;
    recv_.state = nullptr;
    recv_.moved = 0;
    comm::Progress progress;
    do {
      progress = fanout_->TryRecv(peer, recv_);
    } while (progress != comm::Progress::kDone && progress != comm::Progress::kFailed);
  }
  void ReceiveAll(Operands& operands) {
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer != rank_) Receive(peer, operands);
    }
  }
  // Forgets the fan-out.
  void Close() { fanout_.reset(); }

 private:
  std::unique_ptr<comm::ShmTransport> transport_;
  std::unique_ptr<comm::Fanout> fanout_;
  const comm::ReduceKernel kernel_ = comm::FindReduceKernel(comm::DataType::kFloat32, comm::ReduceOp::kSum);
  comm::SendOperation send_;
  comm::RecvOperation recv_;
  int rank_ = 0;
  int ranks_ = 1;
};

// Sends and receives, whose messages are there, one at a time; and exchanges back to back.
absl::Status MeasureTransport(RankSession& session, measure::InstructionCounter* counter,
                              std::vector<LayerCost>* layers) {
  FanoutOfAll fanout;
  COHORT_RETURN_IF_ERROR(fanout.Connect(session));
  Operands operands;
  uint64_t send = std::numeric_limits<uint64_t>::max();
  uint64_t receive = send;
  for (int i = 0; i < kCounts; ++i) {
    if (counter != nullptr) {
      send = std::min(send, counter->Count([&] { fanout.Send(operands); }));
    } else {
      fanout.Send(operands);
    }
    COHORT_RETURN_IF_ERROR(session.gate().Wait());  // all messages are there
    if (counter != nullptr) {
      receive = std::min(receive, counter->Count([&] { fanout.ReceiveAll(operands); }));
    } else {
      fanout.ReceiveAll(operands);
    }
  }
  std::vector<double> trials;
  for (int trial = 0; trial < kLayerTrials; ++trial) {
    COHORT_RETURN_IF_ERROR(session.gate().Wait());
    const uint64_t begin = measure::Ticks();
    for (int i = 0; i < kLayerLoops; ++i) {
      while (!fanout.Send(operands)) {
      }
      fanout.ReceiveAll(operands);
    }
    trials.push_back(static_cast<double>(measure::Ticks() - begin) * measure::NanosecondsPerTick() / kLayerLoops);
  }
  COHORT_RETURN_IF_ERROR(session.gate().Wait());
  const bool counted = counter != nullptr;
  layers->push_back({.name = "transport: send, look whether a reader sleeps", .instructions = counted ? send : 0});
  layers->push_back({.name = "transport: receive, add; ns: an exchange back to back",
                     .ns = measure::Median(trials),
                     .instructions = counted ? receive : 0});
  fanout.Close();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LayerCost>> MeasureLayers(RankSession& session, measure::InstructionCounter* counter) {
  std::vector<LayerCost> layers;
  runtime::Engine& engine = session.runtime().engine();
  layers.push_back(Alone("engine: own it, let go", counter, [&engine] { runtime::EngineLock lock(engine); }));

  Operands operands;
  comm::GroupContext context;
  context.size = std::max(2, session.ranks());
  const comm::CallArguments arguments{comm::CollectiveKind::kAllReduce,
                                      comm::ConstBuffer(operands.in, 2),
                                      comm::Buffer(operands.out, 2),
                                      comm::ReduceOp::kSum,
                                      -1,
                                      -1,
                                      std::source_location::current()};
  comm::CallMemo memo;
  const comm::CallOptions options;
  auto made = std::make_unique<comm::RememberedCall>();
  COHORT_RETURN_IF_ERROR(comm::CheckCall(context, arguments, options, nullptr, made.get()));
  const comm::RememberedCall& call = memo.Keep(made);
  layers.push_back(Alone("memory of calls: find this one", counter, [&] {
    comm::RememberedCall* found = memo.Find(arguments, options);
    asm volatile("" : : "r"(found) : "memory");
  }));

  comm::CallRecorder recorder(context);
  runtime::CallRecord record;
  const uint64_t beyond_sequence = runtime::HashBeyondSequence(record.signature);
  layers.push_back(
      Alone("number, signature, chain", counter, [&] { recorder.Number(call.request, beyond_sequence, &record); }));
  layers.back().is_bounded = true;

  const auto memory = std::make_unique<runtime::BlackBoxMemory>();
  runtime::BlackBoxWriter writer(memory.get());
  runtime::CallDescription description;
  layers.push_back(Alone("black box: start and finish a record", counter, [&] {
    writer.Finish(writer.Start(record, &description), runtime::CallState::kDone, /*at_once=*/true);
  }));
  layers.back().is_bounded = true;
  COHORT_ASSIGN_OR_RETURN(const std::string transports, session.TransportNames());
  if (transports == "shm") COHORT_RETURN_IF_ERROR(MeasureTransport(session, counter, &layers));
  return layers;
}

absl::StatusOr<uint64_t> CountCall(RankSession& session, measure::InstructionCounter* counter) {
  Operands operands;
  absl::Status status;
  const auto call = [&] {
    return session.world().AllReduce(comm::ConstBuffer(operands.in, 2), comm::Buffer(operands.out, 2),
                                     comm::ReduceOp::kSum);
  };
  const auto finished = [&] { status = call().Wait(); };
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (int i = 0; i < 2 * kCounts; ++i) {
    if (session.rank() != 0) {
      comm::Work work = call();
      COHORT_RETURN_IF_ERROR(session.gate().Wait());
      // Awake: a call that is counted by single steps lasts longer than a rank spins, and to wake it is another cost.
      while (!work.Done()) (void)work.Wait(runtime::Deadline::Now());
      COHORT_RETURN_IF_ERROR(work.status());
    } else {
      COHORT_RETURN_IF_ERROR(session.gate().Wait());
      if (counter != nullptr) {
        least = std::min(least, counter->Count(finished));
      } else {
        finished();
      }
      COHORT_RETURN_IF_ERROR(status);
    }
  }
  return session.rank() == 0 && counter != nullptr ? least : 0;
}

}  // namespace cohort::collperf
