#include "cohort/launcher/trace/trace_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/launcher/trace/trace_packets.h"
#include "cohort/runtime/perfetto/perfetto_reader.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::launcher {
namespace {

using runtime::PerfettoReader;
using runtime::TraceWords;

constexpr size_t kMostCalls = 4u << 20;
constexpr size_t kMostStates = 4u << 20;
constexpr size_t kMostShapeBytes = 1u << 30;    // of calls and states that differ
constexpr size_t kMostBegunBytes = 256u << 20;  // of slices without an end
constexpr size_t kTimesKept = 2;                // a shape's texts, which are in its key too
constexpr size_t kMostOpen = 1u << 16;
constexpr size_t kMostMarks = 4u << 20;
constexpr size_t kMostMissed = 1u << 16;
constexpr uint64_t kMissedTogetherNs = 1'000'000'000;  // of all ranks: the list holds 18 hours
constexpr uint16_t kMostKinds = 64;

std::optional<uint16_t> KindOf(const std::string& name) {
  for (uint16_t kind = 0; kind < kMostKinds; ++kind) {
    if (runtime::CallKindName(kind) == name) return kind;
  }
  return std::nullopt;
}

// The latest count.
template <typename T>
void DropFirst(size_t most, std::vector<T>* all, uint64_t* left_out) {
  if (all->size() <= most) return;
  *left_out += most / 2;
  all->erase(all->begin(), all->begin() + static_cast<std::ptrdiff_t>(most / 2));
}

using Event = PerfettoReader::Event;

const std::string& Text(const Event& event, const char* name) {
  static const std::string none;
  const auto found = event.arguments.find(name);
  return found == event.arguments.end() ? none : found->second;
}

uint64_t Number(const Event& event, const char* name) { return std::strtoull(Text(event, name).c_str(), nullptr, 10); }

class TraceReader {
 public:
  // `shown`: the file's name in errors.
  absl::StatusOr<TraceContents> Read(const std::string& path, const std::string& shown);

 private:
  struct Track {
    enum class Kind { kOther, kCalls, kStates, kLongCalls };
    Kind kind = Kind::kOther;
    uint32_t rank = 0;
    size_t node = 0;
    std::optional<Event> open;  // the slice that has begun
  };

  void On(const Event& event);
  Track& TrackOf(uint64_t uuid);
  // Group, epoch, sequence, operation, other side and rank.
  using CallKey = std::tuple<uint64_t, uint32_t, uint64_t, uint32_t, int32_t, uint32_t>;
  struct OpenCall {
    TracedCall call;
    uint64_t calls_before = 0;  // of its rank
  };

  void OnSlice(const Event& event);
  void OnInstant(const Event& event);
  static CallKey KeyOf(const TracedCall& call);
  void AddOpenCalls();
  void DropFirstHalf();
  void AddMark(const Event& event);
  void AddMissed(const Event& event);
  void AddCall(const Track& track, const Event& begin, uint64_t end_ns);
  void AddState(const Track& track, const Event& begin, uint64_t end_ns);
  std::shared_ptr<const v1::CallShape> ShapeOf(const Track& track, const Event& begin, const std::string& operation);

  PerfettoReader reader_;
  TraceContents found_;
  uint64_t format_ = 0;
  bool ours_ = false;  // it says that dlaunch wrote it, or has a rank
  std::unordered_map<uint64_t, Track> tracks_;
  Track undescribed_;
  std::map<uint64_t, size_t> nodes_;       // by the uuid of the track
  std::map<CallKey, OpenCall> open_;       // that went on when they were seen last
  std::map<uint32_t, uint64_t> calls_of_;  // by rank, with those that are missing
  uint64_t latest_ns_ = 0;
  size_t begun_bytes_ = 0;  // of open slices
  size_t shape_bytes_ = 0;  // of the shapes that are kept, about
  std::unordered_map<std::string, std::shared_ptr<const v1::CallShape>> shapes_;
  std::unordered_map<std::string, std::shared_ptr<const v1::StateShape>> state_shapes_;
};

// "rank 3", "rank 3 outside calls", "rank 3 long calls". Others, such as "rank 3, predicted: ring", are none of the
// run's.
TraceReader::Track& TraceReader::TrackOf(uint64_t uuid) {
  const auto described = reader_.tracks().find(uuid);
  if (described == reader_.tracks().end()) return undescribed_;
  const auto [at, fresh] = tracks_.try_emplace(uuid);
  Track& track = at->second;
  if (!fresh) return track;
  const std::string& name = described->second.name;
  constexpr size_t kPrefix = sizeof TraceWords::kRank - 1;
  if (!name.starts_with(TraceWords::kRank)) return track;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix, end, track.rank);
  if (error != std::errc() || track.rank >= kMostTracedRanks) return track;
  const std::string_view behind(rest, static_cast<size_t>(end - rest));
  if (behind.empty()) track.kind = Track::Kind::kCalls;
  if (behind == TraceWords::kOutsideCalls) track.kind = Track::Kind::kStates;
  if (behind == TraceWords::kLongCalls) track.kind = Track::Kind::kLongCalls;
  if (track.kind == Track::Kind::kOther) return track;
  ours_ = true;
  const auto [node, is_new] = nodes_.emplace(described->second.parent, found_.nodes.size());
  if (is_new) {
    const auto parent = reader_.tracks().find(described->second.parent);
    found_.nodes.push_back(parent == reader_.tracks().end() ? "" : parent->second.name);
  }
  track.node = node->second;
  return track;
}

void TraceReader::On(const Event& event) {
  if (begun_bytes_ > kMostBegunBytes) return;
  event.type == v1::TrackEvent::TYPE_INSTANT ? OnInstant(event) : OnSlice(event);
  while (shape_bytes_ > kMostShapeBytes) DropFirstHalf();
}

void TraceReader::OnSlice(const Event& event) {
  Track& track = TrackOf(event.track);
  if (track.kind != Track::Kind::kCalls && track.kind != Track::Kind::kStates) return;
  latest_ns_ = std::max(latest_ns_, event.ns);
  if (event.type == v1::TrackEvent::TYPE_SLICE_BEGIN) {
    begun_bytes_ += event.bytes() - (track.open ? track.open->bytes() : 0);
    track.open = event;
  } else if (event.type == v1::TrackEvent::TYPE_SLICE_END && track.open) {
    const Event begin = *std::exchange(track.open, std::nullopt);
    begun_bytes_ -= begin.bytes();
    const uint64_t end_ns = std::max(event.ns, begin.ns);
    track.kind == Track::Kind::kCalls ? AddCall(track, begin, end_ns) : AddState(track, begin, end_ns);
  }
}

// The calls that go on are told again.
void TraceReader::DropFirstHalf() {
  const auto drop = [this](auto* all) {
    const auto count = static_cast<std::ptrdiff_t>((all->size() + 1) / 2);
    found_.left_out += static_cast<uint64_t>(count);
    all->erase(all->begin(), all->begin() + count);
  };
  drop(&found_.calls);
  drop(&found_.states);
  open_.clear();
  shapes_.clear();
  state_shapes_.clear();
  shape_bytes_ = 0;
  std::unordered_set<const void*> seen;
  for (const TracedCall& call : found_.calls) {
    if (seen.insert(call.shape.get()).second) shape_bytes_ += kTimesKept * call.shape->SpaceUsedLong();
  }
  for (const RankState& state : found_.states) {
    if (seen.insert(state.shape.get()).second) shape_bytes_ += kTimesKept * state.shape->SpaceUsedLong();
  }
}

void TraceReader::OnInstant(const Event& event) {
  if (event.name == TraceWords::kBegin) {
    ours_ = true;
    format_ = std::max(format_, Number(event, TraceWords::kFormat));
    found_.begin_ns = std::min(found_.begin_ns.value_or(event.ns), event.ns);  // each part of a trace tells its own
  } else if (event.name == TraceWords::kMissing) {
    AddMissed(event);
  } else if (event.name == TraceWords::kStep) {
    AddMark(event);
  } else if (event.name == TraceWords::kGoesOn) {
    const Track& track = TrackOf(event.track);
    if (track.kind != Track::Kind::kLongCalls) return;
    latest_ns_ = std::max(latest_ns_, event.ns);
    const TracedCall call{.rank = track.rank,
                          .node = track.node,
                          .shape = ShapeOf(track, event, Text(event, TraceWords::kOperation)),
                          .sequence = Number(event, TraceWords::kSequence),
                          .start_ns = std::min(Number(event, TraceWords::kBegan), event.ns),
                          .end_ns = event.ns,
                          .state = runtime::CallState::kStarted};
    const auto known = open_.find(KeyOf(call));
    if (known != open_.end()) {
      known->second = {call, calls_of_[track.rank]};
    } else if (open_.size() < kMostOpen) {
      open_[KeyOf(call)] = {call, calls_of_[track.rank]};
    }
  }
}

TraceReader::CallKey TraceReader::KeyOf(const TracedCall& call) {
  return {call.shape->group(), call.shape->epoch(),     call.sequence,
          call.shape->kind(),  call.shape->peer_rank(), call.rank};
}

// As many calls as a rank's black box holds overwrite one, whose end is then known to nobody.
void TraceReader::AddOpenCalls() {
  for (auto& [key, open] : open_) {
    if (calls_of_[open.call.rank] - open.calls_before >= uint64_t{runtime::kBlackBoxRecords}) continue;
    open.call.end_ns = std::max(open.call.end_ns, latest_ns_);
    found_.calls.push_back(std::move(open.call));
  }
}

// Calls that repeat share one.
std::shared_ptr<const v1::CallShape> TraceReader::ShapeOf(const Track& track, const Event& begin,
                                                          const std::string& operation) {
  std::string key = std::to_string(track.rank) + operation;
  for (const char* const name :
       {TraceWords::kCall, TraceWords::kSite, TraceWords::kGroup, TraceWords::kBytes, TraceWords::kGroupSize,
        TraceWords::kEpoch, TraceWords::kOtherRank, TraceWords::kDevice}) {
    key += '\0' + Text(begin, name);
  }
  std::shared_ptr<const v1::CallShape>& known = shapes_[key];
  if (known != nullptr) return known;
  auto shape = std::make_shared<v1::CallShape>();
  const uint16_t kind = KindOf(operation).value_or(0);
  const auto number_or_none = [&begin](const char* name) {
    return Text(begin, name).empty() ? -1
                                     : static_cast<int32_t>(std::min<uint64_t>(Number(begin, name), kMostTracedRanks));
  };
  shape->set_kind(kind);
  shape->set_call(Text(begin, TraceWords::kCall));
  shape->set_site(Text(begin, TraceWords::kSite));
  shape->set_group(std::strtoull(Text(begin, TraceWords::kGroup).c_str(), nullptr, 16));
  shape->set_bytes(Number(begin, TraceWords::kBytes));
  shape->set_group_size(std::max(number_or_none(TraceWords::kGroupSize), 0));
  shape->set_epoch(static_cast<uint32_t>(Number(begin, TraceWords::kEpoch)));
  shape->set_device(number_or_none(TraceWords::kDevice));
  shape->set_peer_rank(number_or_none(TraceWords::kOtherRank));
  shape->set_group_rank(static_cast<int32_t>(track.rank));
  shape->set_root(runtime::IsPointToPoint(kind) ? -1 : shape->peer_rank());
  shape_bytes_ += kTimesKept * shape->SpaceUsedLong();
  known = std::move(shape);
  return known;
}

void TraceReader::AddMark(const Event& event) {
  const Track& track = TrackOf(event.track);
  if (track.kind != Track::Kind::kCalls) return;
  found_.marks.push_back({.rank = track.rank, .number = Number(event, TraceWords::kNumber), .ns = event.ns});
  DropFirst(kMostMarks, &found_.marks, &found_.left_out);
}

void TraceReader::AddMissed(const Event& event) {
  const uint64_t calls = Number(event, TraceWords::kCalls);
  const bool another = found_.missed.empty() || event.ns >= found_.missed.back().ns + kMissedTogetherNs;
  if (another && found_.missed.size() < kMostMissed) found_.missed.push_back({.ns = event.ns, .calls = 0});
  found_.missed.back().calls += calls;
  const Track& track = TrackOf(event.track);
  if (track.kind == Track::Kind::kCalls) calls_of_[track.rank] += calls;
}

void TraceReader::AddCall(const Track& track, const Event& begin, uint64_t end_ns) {
  const std::string& ended = Text(begin, TraceWords::kEnded);
  const runtime::CallState state = ended.empty()                     ? runtime::CallState::kDone
                                   : ended == TraceWords::kWithError ? runtime::CallState::kFailed
                                                                     : runtime::CallState::kStarted;
  found_.calls.push_back({.rank = track.rank,
                          .node = track.node,
                          .shape = ShapeOf(track, begin, begin.name),
                          .sequence = Number(begin, TraceWords::kSequence),
                          .start_ns = begin.ns,
                          .end_ns = end_ns,
                          .state = state});
  ++calls_of_[track.rank];
  if (!open_.empty()) open_.erase(KeyOf(found_.calls.back()));
  DropFirst(kMostCalls, &found_.calls, &found_.left_out);
}

void TraceReader::AddState(const Track& track, const Event& begin, uint64_t end_ns) {
  const std::string& object = Text(begin, TraceWords::kObject);
  const std::string& place = Text(begin, TraceWords::kPlace);
  std::shared_ptr<const v1::StateShape>& known = state_shapes_[begin.name + '\0' + object + '\0' + place];
  if (known == nullptr) {
    auto shape = std::make_shared<v1::StateShape>();
    shape->set_activity(static_cast<uint32_t>(ActivityOfName(begin.name).value_or(Activity::kUnknown)));
    shape->set_object(object);
    shape->set_place(place);
    shape_bytes_ += kTimesKept * shape->SpaceUsedLong();
    known = std::move(shape);
  }
  const uint64_t length_ns = end_ns - begin.ns;
  found_.states.push_back({.rank = track.rank,
                           .node = track.node,
                           .shape = known,
                           .begin_ns = begin.ns,
                           .end_ns = end_ns,
                           .computed_ns = std::min(Number(begin, TraceWords::kComputed), length_ns),
                           .queued_ns = std::min(Number(begin, TraceWords::kQueued), length_ns),
                           .throttled_ns = std::min(Number(begin, TraceWords::kThrottled), length_ns)});
  DropFirst(kMostStates, &found_.states, &found_.left_out);
}

absl::StatusOr<TraceContents> TraceReader::Read(const std::string& path, const std::string& shown) {
  const std::string name = Printable(shown);
  const absl::Status read = reader_.Read(path, [this](const Event& event) { On(event); }, shown);
  if (format_ > kTraceFormat) {
    return WithRemedy(Remedy::kTraceVersion,
                      absl::UnimplementedError(name + " is a trace of a later dlaunch, of format " +
                                               std::to_string(format_) + " where this one knows " +
                                               std::to_string(kTraceFormat) + "; use the dlaunch that wrote it"));
  }
  const bool too_much = begun_bytes_ > kMostBegunBytes;
  if (absl::IsDataLoss(read) || too_much) {
    const std::string why =
        too_much ? shown + " holds more slices without an end than a job has ranks" : std::string(read.message());
    return WithRemedy(Remedy::kTraceDamaged,
                      absl::DataLossError(Printable(why) + "; take another trace, or give the undamaged file"));
  }
  if (absl::IsNotFound(read))
    return absl::NotFoundError("no trace can be read: " + Printable(std::string(read.message())));
  if (!read.ok() || !ours_) {
    return InvalidArgumentError(Remedy::kNoTrace,
                                name + " is no trace of dlaunch; give a file of dlaunch --trace or dlaunch trace");
  }
  AddOpenCalls();
  found_.cut = reader_.cut();
  return std::move(found_);
}

}  // namespace

uint64_t TraceContents::missed_calls() const {
  uint64_t sum = 0;
  for (const MissedCalls& each : missed) sum += each.calls;
  return sum;
}

std::chrono::nanoseconds TraceContents::length() const {
  uint64_t first_ns = begin_ns.value_or(~uint64_t{0}), end_ns = 0;
  const auto add = [&](uint64_t from_ns, uint64_t to_ns) {
    first_ns = std::min(first_ns, from_ns);
    end_ns = std::max(end_ns, to_ns);
  };
  for (const TracedCall& call : calls) add(call.start_ns, call.end_ns);
  for (const RankState& state : states) add(state.begin_ns, state.end_ns);
  return std::chrono::nanoseconds(end_ns - std::min(first_ns, end_ns));
}

void KeepLatest(std::chrono::nanoseconds length, TraceContents* contents) {
  uint64_t end_ns = 0;
  for (const TracedCall& call : contents->calls) end_ns = std::max(end_ns, call.end_ns);
  for (const RankState& state : contents->states) end_ns = std::max(end_ns, state.end_ns);
  const uint64_t from_ns = end_ns - std::min(end_ns, static_cast<uint64_t>(length.count()));
  if (contents->begin_ns) contents->begin_ns = std::max(*contents->begin_ns, from_ns);
  const size_t earlier = std::erase_if(contents->calls, [=](const TracedCall& call) { return call.end_ns < from_ns; });
  if (earlier > 0) contents->left_out = 0;  // which came before these
  std::erase_if(contents->states, [=](const RankState& state) { return state.end_ns < from_ns; });
  std::erase_if(contents->marks, [=](const StepMark& mark) { return mark.ns < from_ns; });
  std::erase_if(contents->missed, [=](const MissedCalls& missed) { return missed.ns < from_ns; });
}

absl::StatusOr<TraceContents> ReadTraceFile(const std::string& path, const std::string& name) {
  const std::string& shown = name.empty() ? path : name;
  struct stat info{};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::NotFoundError("no trace can be read: " + Printable(shown) + " is no plain file");
  }
  return TraceReader().Read(path, shown);
}

}  // namespace cohort::launcher
