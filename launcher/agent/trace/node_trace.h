// Reads the rings of a node's ranks while a trace is taken, and sends what they hold to dlaunch, compressed, with the
// states of the ranks' programs. Ranks record their ranges for it, and do nothing else.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/launcher/agent/trace/range_columns.h"
#include "cohort/launcher/agent/trace/range_reader.h"
#include "cohort/launcher/agent/trace/read_pace.h"
#include "cohort/launcher/agent/trace/ring_reader.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/segment/segment.h"
#include "cohort/v1/ranges.pb.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// On the loop's thread.
class NodeTrace {
 public:
  // Calls, and ranges, looked at in one go, of all ranks: half a millisecond of the loop's time.
  static constexpr size_t kCallsAtOnce = 2048;
  static constexpr std::chrono::milliseconds kSendEvery{500};
  static constexpr size_t kCallsToSend = 4096;  // with the ranges

  struct Surroundings {
    // The segment that a local rank uses. It has memory once the rank has joined.
    std::function<runtime::Segment&(int local_rank)> segment_of;
    // Whether dlaunch takes no more for now. The rings go on meanwhile.
    std::function<bool()> full;
    std::function<void(v1::NodeTrace trace)> send;
    // Begins or ends to look at what the programs of the ranks do.
    std::function<void(bool on)> watch_states;
    // Adds what was seen since.
    std::function<void(v1::TracedCalls* calls)> add_states;
  };

  // `ranks`: the world ranks of the local ones.
  NodeTrace(EventLoop* loop, std::vector<uint32_t> ranks, Surroundings surroundings);
  ~NodeTrace() { loop_->Cancel(timer_); }
  NodeTrace(const NodeTrace&) = delete;
  NodeTrace& operator=(const NodeTrace&) = delete;

  // Begins with calls that are made from now on, or with those that the rings hold, and ends with those that have been
  // made. An order that changes nothing is answered too.
  void Obey(const v1::TraceOrder& order);
  // A rank begins to use a segment.
  void OnJoin(int local_rank);
  // A rank has finalized, or has ended: it writes no more there.
  void OnLeave(int local_rank);
  // Sends what was read.
  void Send(bool last = false);

 private:
  struct Rank {
    const runtime::Segment* segment = nullptr;  // that it has joined; none: it has left it, or has not joined
    std::optional<RingReader> reader;           // while a trace is taken, as the next
    std::optional<RangeReader> range_reader;
    v1::RankCalls* calls = nullptr;                    // in `gathered_`
    std::unordered_map<std::string, uint32_t> shapes;  // in `calls`, by their bytes
    uint64_t last_start_ns = 0;                        // in `calls`
    std::optional<RangeColumns> ranges;                // in `gathered_ranges_`
  };

  // Returns the time until the next look.
  ReadPace::Duration Read();
  void ReadLast(size_t local_rank);
  void Follow(size_t local_rank, bool past);
  void Schedule(ReadPace::Duration pause);
  runtime::BlackBoxReader BoxOf(int local_rank) const;
  runtime::RangeMemory& RangesOf(size_t local_rank) const;
  v1::RankCalls& CallsOf(size_t local_rank);
  // The call's, an index of `shapes`.
  uint32_t ShapeIn(size_t local_rank, const runtime::CallRecord& call, const runtime::CallService& service);
  void AddOpen(size_t local_rank);
  void Add(size_t local_rank, const runtime::CallRecord& call, const runtime::CallService& service);
  void AddMissed(size_t local_rank, uint64_t missed);
  RangeReader::OnRange AddRangesOf(size_t local_rank);
  RangeColumns& ColumnsOf(size_t local_rank);
  void AddMissedRanges(size_t local_rank, uint64_t missed);

  EventLoop* const loop_;
  const std::vector<uint32_t> world_ranks_;
  const Surroundings surroundings_;
  std::vector<Rank> ranks_;
  uint64_t number_ = 0;  // of the trace
  bool on_ = false;
  v1::TracedCalls gathered_;
  v1::TracedRanges gathered_ranges_;
  size_t gathered_records_ = 0;  // of both
  EventLoop::Clock::time_point sent_{};
  ReadPace pace_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace cohort::launcher
