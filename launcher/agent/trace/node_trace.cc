#include "cohort/launcher/agent/trace/node_trace.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "cohort/launcher/agent/trace/shared_wake.h"
#include "cohort/launcher/base/unix_time.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/perfetto/compressed.h"
#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/layout.h"

namespace cohort::launcher {
namespace {

using runtime::CallRecord;
using runtime::CallService;

v1::CallShape ShapeOf(const CallRecord& call, const CallService& service) {
  v1::CallShape shape;
  shape.set_group(call.signature.group);
  shape.set_epoch(call.signature.epoch);
  shape.set_kind(call.signature.kind);
  shape.set_bytes(call.bytes);
  shape.set_algorithm(runtime::PrintableText(service.algorithm, sizeof service.algorithm));
  shape.set_transports(runtime::TransportNames(service.transports));
  shape.set_root(call.signature.root);
  shape.set_group_rank(call.group_rank);
  shape.set_group_size(call.group_size);
  shape.set_peer_rank(call.peer_world_rank);
  shape.set_device(call.device);
  shape.set_call(runtime::DescribeCall(call));
  shape.set_site(runtime::SiteOf(call));
  return shape;
}

// The part that repeated calls share, as bytes.
std::string SharedBytes(CallRecord call, const CallService& service) {
  call.signature.sequence = call.wire_signature = call.start_ns = call.end_ns = 0;
  call.state = runtime::CallState::kEmpty;
  call.result = 0;
  std::string bytes(reinterpret_cast<const char*>(&call), sizeof call);
  return bytes.append(reinterpret_cast<const char*>(&service), sizeof service);
}

}  // namespace

NodeTrace::NodeTrace(EventLoop* loop, std::vector<uint32_t> ranks, Surroundings surroundings)
    : loop_(loop),
      world_ranks_(std::move(ranks)),
      surroundings_(std::move(surroundings)),
      ranks_(world_ranks_.size()),
      pace_(CpusToShare()) {}

runtime::BlackBoxReader NodeTrace::BoxOf(int local_rank) const {
  return surroundings_.segment_of(local_rank).black_box_of(local_rank);
}

runtime::RangeMemory& NodeTrace::RangesOf(size_t local_rank) const {
  const int rank = static_cast<int>(local_rank);
  return *runtime::RangesOf(surroundings_.segment_of(rank), rank);
}

// Begins to read the rings of a rank that has joined: all that they hold, or what comes from now on.
void NodeTrace::Follow(size_t local_rank, bool past) {
  Rank& rank = ranks_[local_rank];
  const auto first = [past](uint64_t latest, uint64_t size) { return latest - (past ? std::min(latest, size) : 0); };
  rank.reader.emplace(first(BoxOf(static_cast<int>(local_rank)).latest(), runtime::kBlackBoxRecords));
  runtime::RangeMemory& ranges = RangesOf(local_rank);
  rank.range_reader.emplace(first(ranges.tickets.load(std::memory_order_acquire), runtime::kRangeRecords));
  ranges.wanted.store(1, std::memory_order_relaxed);
}

void NodeTrace::Obey(const v1::TraceOrder& order) {
  if (on_ && order.on()) return;
  number_ = order.number();
  if (!order.on()) {
    for (size_t i = 0; i < ranks_.size() && on_; ++i) {
      if (ranks_[i].reader) RangesOf(i).wanted.store(0, std::memory_order_relaxed);
      ReadLast(i);
      if (gathered_records_ >= kCallsToSend) Send();  // a message has a bound
    }
    on_ = false;
    loop_->Cancel(std::exchange(timer_, 0));
    Send(/*last=*/true);
    return surroundings_.watch_states(false);
  }
  on_ = true;
  pace_.Restart();
  sent_ = EventLoop::Clock::now();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].segment != nullptr) Follow(i, order.past());
  }
  surroundings_.watch_states(true);
  Send();  // the node's clocks
  Schedule(ReadPace::kLeast);
}

void NodeTrace::OnJoin(int local_rank) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  const runtime::Segment* segment = &surroundings_.segment_of(local_rank);
  if (std::exchange(rank.segment, segment) == segment) return;
  if (on_) Follow(static_cast<size_t>(local_rank), /*past=*/true);
}

void NodeTrace::OnLeave(int local_rank) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  const bool read = rank.reader.has_value();
  if (rank.segment != &surroundings_.segment_of(local_rank)) {
    rank.reader.reset();
    rank.range_reader.reset();
  }
  ReadLast(static_cast<size_t>(local_rank));
  rank.segment = nullptr;
  if (read) Send();  // so that it comes before the news of its end
}

void NodeTrace::ReadLast(size_t local_rank) {
  std::optional<RingReader>& reader = ranks_[local_rank].reader;
  if (!reader) return;
  AddMissed(local_rank, reader->Finish(BoxOf(static_cast<int>(local_rank)),
                                       [this, local_rank](const CallRecord& call, const CallService& service) {
                                         Add(local_rank, call, service);
                                       }));
  reader.reset();
  std::optional<RangeReader>& ranges = ranks_[local_rank].range_reader;
  AddMissedRanges(local_rank, ranges->Finish(RangesOf(local_rank), AddRangesOf(local_rank)));
  ranges.reset();
}

void NodeTrace::Schedule(ReadPace::Duration pause) {
  // The looks at the programs are as far apart, or half as far.
  const bool shared = pause == ReadPace::kMost;
  const std::chrono::nanoseconds delay = shared ? UntilSharedWake(EventLoop::Clock::now(), pause) : pause;
  timer_ = loop_->After(delay, [this] { Schedule(Read()); });
}

ReadPace::Duration NodeTrace::Read() {
  if (surroundings_.full()) return ReadPace::kMost;
  const size_t most = std::max<size_t>(kCallsAtOnce / std::max<size_t>(ranks_.size(), 1), 16);
  size_t news = 0, fullest = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].reader) continue;
    const size_t before = gathered_records_;
    const uint64_t missed = ranks_[i].reader->Read(
        BoxOf(static_cast<int>(i)), most,
        [this, i](const CallRecord& call, const CallService& service) { Add(i, call, service); });
    AddMissed(i, missed);
    const size_t calls = gathered_records_ - before;
    AddMissedRanges(i, ranks_[i].range_reader->Read(RangesOf(i), most, AddRangesOf(i)));
    const size_t ranges = gathered_records_ - before - calls;
    news += calls + ranges;
    const bool overflows = missed > 0 || std::max(calls, ranges) >= most;
    fullest = std::max({fullest, calls, ranges, overflows ? size_t{runtime::kBlackBoxRecords} : 0});
  }
  const bool is_time = EventLoop::Clock::now() - sent_ >= kSendEvery;
  for (size_t i = 0; i < ranks_.size() && is_time; ++i) AddOpen(i);
  if (is_time || gathered_records_ >= kCallsToSend) Send();
  return pace_.Next(news, fullest);
}

v1::RankCalls& NodeTrace::CallsOf(size_t local_rank) {
  Rank& rank = ranks_[local_rank];
  if (rank.calls == nullptr) {
    rank.calls = gathered_.add_ranks();
    rank.calls->set_rank(world_ranks_[local_rank]);
    rank.last_start_ns = 0;
    rank.shapes.clear();
  }
  return *rank.calls;
}

uint32_t NodeTrace::ShapeIn(size_t local_rank, const CallRecord& call, const CallService& service) {
  v1::RankCalls& calls = CallsOf(local_rank);
  const auto [shape, fresh] =
      ranks_[local_rank].shapes.emplace(SharedBytes(call, service), static_cast<uint32_t>(calls.shapes_size()));
  if (fresh) *calls.add_shapes() = ShapeOf(call, service);
  return shape->second;
}

// Others may wait in them for long, and the trace is read meanwhile.
void NodeTrace::AddOpen(size_t local_rank) {
  if (!ranks_[local_rank].reader) return;
  const uint64_t now_ns = runtime::SteadyNow();
  ranks_[local_rank].reader->TellOpen(BoxOf(static_cast<int>(local_rank)), now_ns,
                                      [&](const CallRecord& call, const CallService& service) {
                                        v1::OpenCall& open = *CallsOf(local_rank).add_open();
                                        open.set_shape(ShapeIn(local_rank, call, service));
                                        open.set_sequence(call.signature.sequence);
                                        open.set_start_ns(call.start_ns);
                                        open.set_seen_ns(now_ns);
                                      });
}

void NodeTrace::Add(size_t local_rank, const CallRecord& call, const CallService& service) {
  v1::RankCalls& calls = CallsOf(local_rank);
  Rank& rank = ranks_[local_rank];
  calls.add_shape(ShapeIn(local_rank, call, service));
  calls.add_sequence(call.signature.sequence);
  calls.add_start_ns(static_cast<int64_t>(call.start_ns - std::exchange(rank.last_start_ns, call.start_ns)));
  const uint64_t end_ns = call.state == runtime::CallState::kStarted ? runtime::SteadyNow() : call.end_ns;
  calls.add_length_ns(static_cast<int64_t>(end_ns - call.start_ns));
  calls.add_state(static_cast<uint32_t>(call.state));
  ++gathered_records_;
}

void NodeTrace::AddMissed(size_t local_rank, uint64_t missed) {
  if (missed == 0) return;
  v1::RankCalls& calls = CallsOf(local_rank);
  calls.set_missed(calls.missed() + missed);
}

RangeColumns& NodeTrace::ColumnsOf(size_t local_rank) {
  std::optional<RangeColumns>& columns = ranks_[local_rank].ranges;
  if (!columns) {
    v1::RankRanges* const ranges = gathered_ranges_.add_ranges();
    ranges->set_rank(world_ranks_[local_rank]);
    columns.emplace(ranges);
  }
  return *columns;
}

RangeReader::OnRange NodeTrace::AddRangesOf(size_t local_rank) {
  return [this, local_rank](const runtime::RangeRecord& range) {
    ColumnsOf(local_rank).Add(range);
    ++gathered_records_;
  };
}

void NodeTrace::AddMissedRanges(size_t local_rank, uint64_t missed) {
  if (missed > 0) ColumnsOf(local_rank).AddMissed(missed);
}

void NodeTrace::Send(bool last) {
  sent_ = EventLoop::Clock::now();
  v1::NodeTrace trace;
  trace.set_number(number_);
  trace.set_steady_ns(runtime::SteadyNow());
  trace.set_unix_ns(UnixTimeNs());
  trace.set_last(last);
  surroundings_.add_states(&gathered_);
  const std::string bytes = gathered_.SerializeAsString() + gathered_ranges_.SerializeAsString();
  if (!bytes.empty()) trace.set_calls(runtime::Compress(bytes));
  gathered_.Clear();
  gathered_ranges_.Clear();
  gathered_records_ = 0;
  for (Rank& rank : ranks_) {
    rank.calls = nullptr;
    rank.ranges.reset();
  }
  surroundings_.send(std::move(trace));
}

}  // namespace cohort::launcher
