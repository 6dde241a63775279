#include "cohort/launcher/trace/job_trace.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cohort/launcher/base/unix_time.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/perfetto/compressed.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::launcher {
namespace {

constexpr uint64_t kLeastWaitNs = 2'000;       // shorter waits are no arrows
constexpr uint64_t kSeenWithinNs = 1'000'000;  // the beginning of a call that a plug-in records (kUnknownDevice)
constexpr size_t kMostEvents = 1000;           // that wait for the next piece

std::string Microseconds(uint64_t ns) { return std::to_string((ns + 999) / 1000) + " us"; }

bool IsWellFormed(const v1::RankCalls& calls) {
  const int count = calls.shape_size();
  if (calls.sequence_size() != count || calls.start_ns_size() != count || calls.length_ns_size() != count ||
      calls.state_size() != count || calls.rank() >= kMostTracedRanks) {
    return false;
  }
  const auto is_known = [&calls](uint32_t shape) { return shape < static_cast<uint32_t>(calls.shapes_size()); };
  return std::all_of(calls.shape().begin(), calls.shape().end(), is_known) &&
         std::all_of(calls.open().begin(), calls.open().end(),
                     [&](const v1::OpenCall& open) { return is_known(open.shape()); });
}

bool IsWellFormed(const v1::RankStates& states) {
  const int count = states.shape_size();
  if (states.begin_ns_size() != count || states.length_ns_size() != count || states.computed_ns_size() != count ||
      states.queued_ns_size() != count || states.throttled_ns_size() != count || states.rank() >= kMostTracedRanks) {
    return false;
  }
  return std::all_of(states.shape().begin(), states.shape().end(),
                     [&states](uint32_t shape) { return shape < static_cast<uint32_t>(states.shapes_size()); });
}

bool IsWellFormed(const v1::RankRanges& ranges) {
  const int count = ranges.name_size();
  if (ranges.lane_size() != count || ranges.line_size() != count || ranges.number_size() != count ||
      ranges.start_ns_size() != count || ranges.length_ns_size() != count || ranges.rank() >= kMostTracedRanks) {
    return false;
  }
  const auto below = [](const auto& numbers, uint32_t end) {
    return std::all_of(numbers.begin(), numbers.end(), [end](uint32_t number) { return number < end; });
  };
  return below(ranges.name(), static_cast<uint32_t>(ranges.names_size())) &&
         below(ranges.lane(), runtime::kRangeLanes) && below(ranges.line(), runtime::kRangeLines);
}

}  // namespace

JobTrace::JobTrace(EventLoop* loop, Surroundings surroundings)
    : loop_(loop), surroundings_(std::move(surroundings)), agents_(surroundings_.names.size(), false) {}

absl::Status JobTrace::Start(const Wish& wish, Opening opening) {
  if (taking_) {
    const bool whole_job = taking_->until == EventLoop::Clock::time_point::max();
    return WithRemedy(Remedy::kTraceTaken,
                      absl::FailedPreconditionError("a trace is being taken already, to " + taking_->file->path() +
                                                    (whole_job ? ", until the job ends; dlaunch why reads it meanwhile"
                                                               : "; ask again when it has ended")));
  }
  const TraceFile::Parts parts = wish.keep.count() > 0 ? TraceFile::Parts::kMany : TraceFile::Parts::kOne;
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<TraceFile> file, TraceFile::Begin(wish.path, parts));
  const bool first = opening == Opening::kFirst;
  const absl::Status opened = file->AwaitOpen(runtime::Deadline::After(first ? kOpensFirstWithin : kOpensAtOnceWithin));
  if (!opened.ok() && (first || !absl::IsDeadlineExceeded(opened))) return opened;
  taking_ = std::make_unique<Taking>(surroundings_.names.size(), [this](const std::vector<TracedCall>& calls,
                                                                        bool complete) { OnMet(calls, complete); });
  taking_->file = std::move(file);
  taking_->keep = wish.keep;
  taking_->past = wish.past;
  taking_->while_asked = wish.while_asked;
  taking_->quiet = wish.quiet;
  taking_->asked = EventLoop::Clock::now();
  taking_->begun = taking_->part_begun = EventLoop::Clock::now();
  taking_->until = wish.length.count() == 0 ? EventLoop::Clock::time_point::max() : taking_->begun + wish.length;
  state_ = v1::TraceState();
  state_.set_number(++number_);
  state_.set_running(true);
  state_.set_file(wish.path);
  Tell(/*on=*/true);
  timer_ = loop_->After(kLookEvery, [this] { Look(); });
  return absl::OkStatus();
}

v1::TraceOrder JobTrace::Order(bool on) const {
  v1::TraceOrder order;
  order.set_number(number_);
  order.set_on(on);
  order.set_past(on && taking_->past);
  return order;
}

void JobTrace::Tell(bool on) {
  const v1::TraceOrder order = Order(on);
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (agents_[i]) surroundings_.tell(i, order);
  }
}

void JobTrace::OnAgentStarted(size_t agent) {
  agents_[agent] = true;
  if (taking_ && taking_->phase == Phase::kReads) surroundings_.tell(agent, Order(/*on=*/true));
}

bool JobTrace::OnTrace(size_t agent, const v1::NodeTrace& trace) {
  if (!taking_ || trace.number() != number_) return true;  // of one that has ended
  if (trace.steady_ns() != 0) taking_->clocks.OnWallClock(agent, trace.steady_ns(), trace.unix_ns());
  if (!trace.calls().empty()) {
    const std::optional<std::string> bytes = runtime::Uncompress(trace.calls(), kMostBytes);
    v1::TracedCalls calls;
    v1::TracedRanges ranges;
    if (!bytes || !calls.ParseFromString(*bytes) || !ranges.ParseFromString(*bytes)) return false;
    for (const v1::RankCalls& rank : calls.ranks()) {
      if (!AddCalls(agent, rank)) return false;
    }
    for (const v1::RankStates& rank : calls.states()) {
      if (!AddStates(agent, rank)) return false;
    }
    for (const v1::RankRanges& rank : ranges.ranges()) {
      if (!AddRanges(agent, rank)) return false;
    }
  }
  if (trace.last()) taking_->ended[agent] = true;
  if (taking_->packets.size() >= kPieceBytes) WritePackets();
  return true;
}

bool JobTrace::AddCalls(size_t agent, const v1::RankCalls& calls) {
  if (!IsWellFormed(calls)) return false;
  std::vector<std::shared_ptr<const v1::CallShape>> shapes;
  for (const v1::CallShape& shape : calls.shapes()) shapes.push_back(std::make_shared<v1::CallShape>(shape));
  const EventLoop::Clock::time_point now = EventLoop::Clock::now();
  uint64_t start_ns = 0;
  for (int i = 0; i < calls.shape_size(); ++i) {
    start_ns += static_cast<uint64_t>(calls.start_ns(i));
    const auto state = static_cast<runtime::CallState>(calls.state(i));
    const uint64_t length_ns = static_cast<uint64_t>(std::max<int64_t>(calls.length_ns(i), 0));
    taking_->meetings.Add({.rank = calls.rank(),
                           .node = agent,
                           .shape = shapes[calls.shape(i)],
                           .sequence = calls.sequence(i),
                           .start_ns = start_ns,
                           .end_ns = start_ns + length_ns,
                           .state = state},
                          now);
  }
  for (const v1::OpenCall& open : calls.open()) {
    const TracedCall call{.rank = calls.rank(),
                          .node = agent,
                          .shape = shapes[open.shape()],
                          .sequence = open.sequence(),
                          .start_ns = taking_->clocks.Aligned(agent, open.start_ns()),
                          .end_ns = taking_->clocks.Aligned(agent, open.seen_ns()),
                          .state = runtime::CallState::kStarted};
    taking_->packets.AddOpen(call, surroundings_.names[agent]);
  }
  if (calls.missed() == 0) return true;
  state_.set_missed(state_.missed() + calls.missed());
  const uint64_t at = taking_->clocks.Aligned(agent, start_ns);
  if (start_ns != 0) {
    taking_->packets.AddMissed(calls.rank(), agent, surroundings_.names[agent], calls.missed(), at);
  }
  return true;
}

bool JobTrace::AddStates(size_t agent, const v1::RankStates& states) {
  if (!IsWellFormed(states)) return false;
  std::vector<std::shared_ptr<const v1::StateShape>> shapes;
  for (const v1::StateShape& shape : states.shapes()) shapes.push_back(std::make_shared<v1::StateShape>(shape));
  uint64_t begin_ns = 0;
  for (int i = 0; i < states.shape_size(); ++i) {
    begin_ns += static_cast<uint64_t>(states.begin_ns(i));
    const uint64_t aligned_ns = taking_->clocks.Aligned(agent, begin_ns);
    taking_->packets.AddState({.rank = states.rank(),
                               .node = agent,
                               .shape = shapes[states.shape(i)],
                               .begin_ns = aligned_ns,
                               .end_ns = aligned_ns + states.length_ns(i),
                               .computed_ns = states.computed_ns(i),
                               .queued_ns = states.queued_ns(i),
                               .throttled_ns = states.throttled_ns(i)},
                              surroundings_.names[agent]);
  }
  return true;
}

bool JobTrace::AddRanges(size_t agent, const v1::RankRanges& ranges) {
  if (!IsWellFormed(ranges)) return false;
  const std::string& node = surroundings_.names[agent];
  std::vector<TracedRange> all;
  uint64_t start_ns = 0, end_ns = 0;
  for (int i = 0; i < ranges.name_size(); ++i) {
    start_ns += static_cast<uint64_t>(ranges.start_ns(i));
    const uint64_t aligned_ns = taking_->clocks.Aligned(agent, start_ns);
    end_ns = std::max(end_ns, aligned_ns + ranges.length_ns(i));
    all.push_back({.rank = ranges.rank(),
                   .node = agent,
                   .name = ranges.names(static_cast<int>(ranges.name(i))),
                   .lane = static_cast<runtime::RangeLane>(ranges.lane(i)),
                   .line = static_cast<uint16_t>(ranges.line(i)),
                   .number = ranges.number(i),
                   .start_ns = aligned_ns,
                   .end_ns = aligned_ns + ranges.length_ns(i)});
  }
  // Inner ranges end first. A reader that sorts by time keeps the order of those that begin together.
  std::stable_sort(all.begin(), all.end(), [](const TracedRange& one, const TracedRange& other) {
    return one.start_ns != other.start_ns ? one.start_ns < other.start_ns : one.end_ns > other.end_ns;
  });
  for (const TracedRange& range : all) {
    if (range.lane == runtime::RangeLane::kSteps) {
      taking_->packets.AddStep({.rank = range.rank, .number = range.number, .ns = range.start_ns}, agent, node);
    } else if (!taking_->packets.AddRange(range, node)) {
      ++taking_->missed_ranges;
      continue;
    }
    ++taking_->unwritten_ranges;
  }
  taking_->missed_ranges += ranges.missed();
  if (ranges.missed() > 0 && end_ns != 0) {
    taking_->packets.AddMissedRanges(ranges.rank(), agent, node, ranges.missed(), end_ns);
  }
  return true;
}

void JobTrace::LearnClocks(const std::vector<TracedCall>& calls) {
  if (std::none_of(calls.begin(), calls.end(), [](const auto& call) { return AwaitsOthers(*call.shape); })) return;
  std::vector<NodeClocks::Visit> visits;
  const uint64_t late_ns = calls[0].shape->device() == runtime::kUnknownDevice ? kSeenWithinNs : 0;
  if (late_ns > 0 && runtime::IsPointToPoint(static_cast<uint16_t>(calls[0].shape->kind()))) return;
  for (const TracedCall& call : calls) {
    if (call.state != runtime::CallState::kDone) return;
    const auto at = std::find_if(visits.begin(), visits.end(),
                                 [&call](const NodeClocks::Visit& visit) { return visit.node == call.node; });
    NodeClocks::Visit& visit = at == visits.end() ? visits.emplace_back() : *at;
    visit.node = call.node;
    visit.last_begun_ns = std::max(visit.last_begun_ns, call.start_ns - std::min(call.start_ns, late_ns));
    if (!call.has_end() || !AwaitsOthers(*call.shape)) continue;
    visit.first_ended_ns = std::min(visit.first_ended_ns.value_or(call.end_ns), call.end_ns);
  }
  if (visits.size() < 2) return;
  std::sort(visits.begin(), visits.end(), [](const auto& one, const auto& other) { return one.node < other.node; });
  taking_->clocks.OnCall(visits);
  if (taking_->clocks.Unbound() > 0) taking_->clocks.Update();
}

void JobTrace::OnMet(const std::vector<TracedCall>& calls, bool complete) {
  if (complete) LearnClocks(calls);
  std::vector<TracedCall> aligned = calls;
  bool comparable = complete;
  for (TracedCall& call : aligned) {
    comparable = comparable && (call.node == calls[0].node || taking_->clocks.ErrorOf(call.node).has_value());
    call.start_ns = taking_->clocks.Aligned(call.node, call.start_ns);
    call.end_ns = taking_->clocks.Aligned(call.node, call.end_ns);
  }
  std::vector<TracePackets::Slice> slices;
  for (const TracedCall& call : aligned) {
    slices.push_back({.call = &call, .node = surroundings_.names[call.node], .complete = complete});
  }
  const uint64_t error_ns = taking_->clocks.LargestError();
  for (const Waited& wait : comparable ? FindWaits(aligned, kLeastWaitNs) : std::vector<Waited>()) {
    TracedCall& first = aligned[wait.waiter];
    const TracedCall& last = aligned[wait.cause];
    if (first.node != last.node && last.start_ns - first.start_ns <= error_ns) continue;
    const uint64_t release_ns = ReleaseOf(first, last);
    first.end_ns = std::max(first.end_ns, release_ns);
    const uint64_t flow = ++taking_->flows;
    TracePackets::Slice& waiter = slices[wait.waiter];
    slices[wait.cause].causes.push_back(flow);
    waiter.waited = flow;
    waiter.waited_for = aligned[wait.cause].rank;
    waiter.waited_ns = release_ns - first.start_ns;
  }
  for (const TracePackets::Slice& slice : slices) {
    if (taking_->packets.Add(slice)) {
      ++taking_->unwritten;
    } else {
      state_.set_missed(state_.missed() + 1);
    }
  }
}

void JobTrace::OnEvent(const std::string& name, const std::string& text) {
  if (taking_ && taking_->events.size() >= kMostEvents) WritePackets();
  if (!taking_ || taking_->events.size() >= kMostEvents) return;
  taking_->events.push_back({name, text, UnixTimeNs()});
}

// Its first packet tells the day of the times by node 0's clock.
void JobTrace::BeginFile(bool in_any_case) {
  if (taking_->has_clock) return;
  const std::optional<uint64_t> by_first_node = taking_->clocks.AtWallClock(UnixTimeNs());
  const bool waits = EventLoop::Clock::now() - taking_->begun < kFirstNodeWithin;
  if (!by_first_node && waits && !in_any_case) return;
  taking_->has_clock = true;
  const uint64_t now = UnixTimeNs();
  taking_->packets.Begin(taking_->clocks.AtWallClock(now).value_or(runtime::SteadyNow()), now);
}

// The file holds the part before and the one that begins.
void JobTrace::BeginPart() {
  WritePackets();
  taking_->part_begun = EventLoop::Clock::now();
  if (!taking_->file->BeginPart()) return;  // the disk does not keep up
  const uint64_t older = state_.calls() - taking_->calls_of_part;
  taking_->older += older;
  state_.set_calls(taking_->calls_of_part);
  taking_->calls_of_part = 0;
  taking_->has_clock = false;
  BeginFile(/*in_any_case=*/true);
}

void JobTrace::WritePackets() {
  if (!taking_->has_clock) return;
  taking_->written = EventLoop::Clock::now();
  for (const Event& event : std::exchange(taking_->events, {})) {
    const uint64_t at = taking_->clocks.AtWallClock(event.unix_ns).value_or(runtime::SteadyNow());
    taking_->packets.AddEvent(event.name, event.text, at);
  }
  std::string piece = taking_->packets.Take();
  const uint64_t calls = std::exchange(taking_->unwritten, 0);
  const uint64_t ranges = std::exchange(taking_->unwritten_ranges, 0);
  if (piece.empty()) return;
  if (taking_->file->Write(std::move(piece))) {
    state_.set_calls(state_.calls() + calls);
    taking_->calls_of_part += calls;
  } else {
    state_.set_missed(state_.missed() + calls);
    taking_->missed_ranges += ranges;
  }
}

void JobTrace::Look() {
  const auto now = EventLoop::Clock::now();
  taking_->clocks.Update();
  taking_->meetings.Expire(now);
  BeginFile(/*in_any_case=*/false);
  if (now - taking_->written >= kWriteEvery) WritePackets();
  if (taking_->has_clock && taking_->keep.count() > 0 && now - taking_->part_begun >= taking_->keep) BeginPart();
  const bool broken = !taking_->file->problem().ok();
  const bool forsaken = taking_->while_asked && now - taking_->asked > kAskedWithin;
  if (taking_->phase == Phase::kReads && (broken || forsaken || now >= taking_->until)) {
    taking_->phase = Phase::kAwaitsEnd;
    taking_->until = std::min(taking_->until, now);
    Tell(/*on=*/false);
  }
  const bool ending = taking_->phase == Phase::kAwaitsEnd;
  bool all_ended = ending;
  for (size_t i = 0; i < agents_.size(); ++i) all_ended = all_ended && (!agents_[i] || taking_->ended[i]);
  if (all_ended || broken || (ending && now >= taking_->until + kAgentsSendWithin)) return AwaitDisk();
  timer_ = loop_->After(kLookEvery, [this] { Look(); });
}

// Without blocking the loop.
void JobTrace::AwaitDisk() {
  WriteRest();
  const absl::Status written = taking_->file->Finish(runtime::Deadline::After(std::chrono::milliseconds(0)));
  const bool waits = absl::IsDeadlineExceeded(written) &&
                     EventLoop::Clock::now() < taking_->until + kAgentsSendWithin + kDiskTakesWithin;
  if (!waits) return Report(written);
  timer_ = loop_->After(kLookEvery, [this] { AwaitDisk(); });
}

std::string JobTrace::Summary() const {
  std::string text = "trace " + state_.file() + ": " + std::to_string(state_.calls()) + " calls";
  if (state_.missed() > 0) text += ", " + std::to_string(state_.missed()) + " more are missing";
  if (taking_->missed_ranges > 0) text += ", " + std::to_string(taking_->missed_ranges) + " ranges are missing";
  if (taking_->older > 0) text += ", " + std::to_string(taking_->older) + " older ones were dropped";
  const NodeClocks& clocks = taking_->clocks;
  if (surroundings_.names.size() > 1) {
    const size_t bound = surroundings_.names.size() - clocks.Unbound();
    if (bound > 1) {
      text += "; the clocks of " + std::to_string(bound) + " nodes agree within " + Microseconds(clocks.LargestError());
    }
    if (clocks.Unbound() > 0) {
      text += "; " + std::to_string(clocks.Unbound()) + " nodes are aligned by their wall clocks alone";
    }
    if (clocks.jumps() > 0) text += "; clocks have jumped " + std::to_string(clocks.jumps()) + " times";
  }
  return text;
}

// Once.
void JobTrace::WriteRest() {
  if (std::exchange(taking_->phase, Phase::kWritten) == Phase::kWritten) return;
  taking_->meetings.Finish();
  taking_->clocks.Update();
  BeginFile(/*in_any_case=*/true);
  WritePackets();
  OnEvent("end of the trace", Summary());
  WritePackets();
}

void JobTrace::Report(const absl::Status& written) {
  loop_->Cancel(std::exchange(timer_, 0));
  if (!written.ok()) state_.set_problem(TextOf(written));
  state_.set_summary(Summary());
  state_.set_running(false);
  const bool quiet = taking_->quiet;
  taking_.reset();
  if (quiet) return;
  if (!state_.problem().empty()) surroundings_.say(state_.problem());
  surroundings_.say(state_.summary());
}

void JobTrace::Finish(runtime::Deadline deadline) {
  if (!taking_) return;
  WriteRest();
  Report(taking_->file->Finish(deadline));
}

v1::TraceState JobTrace::Answer(const v1::TraceRequest& request) {
  if (taking_ && request.number() == number_) taking_->asked = EventLoop::Clock::now();
  if (request.number() != 0 || request.file().empty()) return state_;
  const absl::Status started = Start({.path = request.file(),
                                      .length = std::chrono::milliseconds(request.milliseconds()),
                                      .keep = {},
                                      .past = request.past(),
                                      .while_asked = request.while_asked(),
                                      .quiet = request.quiet()},
                                     Opening::kMeanwhile);
  if (started.ok()) return state_;
  v1::TraceState refused;
  refused.set_refused(TextOf(started));
  return refused;
}

}  // namespace cohort::launcher
