#include "tools/prediction/prediction_trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/base/whole_file.h"
#include "cohort/runtime/perfetto/trace_words.h"

namespace cohort::tools {
namespace {

using runtime::PerfettoReader;
using runtime::TraceWords;
using v1::TrackEvent;

constexpr uint64_t kFirstNs = 1'000'000'000;  // of a file of its own; see runtime/perfetto/README.md
constexpr size_t kBlock = 1u << 20;

uint64_t UnixNs() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

// The number in "rank 3"; nothing for other tracks.
std::optional<int> RankOfTrack(std::string_view name) {
  constexpr std::string_view kRank = TraceWords::kRank;
  if (!name.starts_with(kRank)) return std::nullopt;
  name.remove_prefix(kRank.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  if (error != std::errc() || end != name.data() + name.size() || rank < 0) return std::nullopt;
  return rank;
}

std::string Seconds(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6f s", static_cast<double>(ns) * 1e-9);
  return text;
}

// Whether there is a file whose contents are to be kept. kInvalidArgument: dlaunch writes it.
absl::StatusOr<bool> HoldsRun(const std::string& path) {
  const runtime::FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info{};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return absl::InvalidArgumentError(path + " is a trace that is still being written: wait for its end");
  }
  return info.st_size > 0;
}

}  // namespace

absl::StatusOr<PredictionTrace> PredictionTrace::Open(std::string path, std::string label, const IsLike& is_like) {
  COHORT_RETURN_IF_ERROR(runtime::CheckWritable(path));
  PredictionTrace trace(std::move(path), std::move(label));
  // Others that were written into the file have other tracks.
  trace.next_number_ = uint64_t{1} << 63 | UnixNs() / 1000 << 20;
  COHORT_ASSIGN_OR_RETURN(const bool holds_run, HoldsRun(trace.path_));
  if (holds_run) {
    COHORT_RETURN_IF_ERROR(trace.ReadRun(is_like));
    trace.packets_.BeginBehind();
  } else {
    trace.begin_ns_ = kFirstNs;
    trace.packets_.Begin(kFirstNs, UnixNs());
  }
  return trace;
}

absl::Status PredictionTrace::ReadRun(const IsLike& is_like) {
  PerfettoReader reader;
  uint64_t first_ns = UINT64_MAX;
  std::vector<uint64_t> alike;
  COHORT_RETURN_IF_ERROR(reader.Read(path_, [&](const PerfettoReader::Event& event) {
    first_ns = std::min(first_ns, event.ns);
    if (event.type != TrackEvent::TYPE_SLICE_BEGIN) return;
    const auto track = reader.tracks().find(event.track);
    if (track != reader.tracks().end() && RankOfTrack(track->second.name) == 0 && is_like(event)) {
      alike.push_back(event.ns);
    }
  }));
  for (const auto& [uuid, track] : reader.tracks()) {
    if (const std::optional<int> rank = RankOfTrack(track.name)) run_groups_[*rank] = track.parent;
  }
  run_bytes_ = reader.whole_bytes();
  begin_ns_ = first_ns == UINT64_MAX ? kFirstNs : first_ns;
  place_ = "at the beginning of what the file holds, where rank 0 does nothing like it";
  if (alike.empty()) return absl::OkStatus();
  const auto middle = alike.begin() + static_cast<ptrdiff_t>(alike.size() / 2);
  std::nth_element(alike.begin(), middle, alike.end());
  begin_ns_ = *middle;
  place_ = "below number " + std::to_string(alike.size() / 2 + 1) + " of " + std::to_string(alike.size()) +
           " of rank 0, " + Seconds(begin_ns_ - first_ns) + " after the beginning of the run";
  return absl::OkStatus();
}

void PredictionTrace::PutInGroup(int rank, const std::string& group) { groups_[rank] = group; }

uint64_t PredictionTrace::GroupTrack(const std::string& name) {
  const auto [at, fresh] = group_tracks_.emplace(name, next_number_);
  if (!fresh) return at->second;
  packets_.Describe({.uuid = next_number_++,
                     .name = name,
                     .order = static_cast<int32_t>(group_tracks_.size()),
                     .has_children = true});
  return at->second;
}

uint64_t PredictionTrace::LineTrack(int rank, size_t line) {
  const auto known = line_tracks_.find({rank, line});
  if (known != line_tracks_.end()) return known->second;
  const auto in_run = run_groups_.find(rank);
  const auto named = groups_.find(rank);
  const uint64_t parent = in_run != run_groups_.end() ? in_run->second
                          : named != groups_.end()    ? GroupTrack(named->second)
                                                      : GroupTrack(label_);
  const uint64_t track = next_number_++;
  line_tracks_.emplace(std::pair(rank, line), track);
  packets_.Describe({.uuid = track,
                     .name = TraceWords::kRank + std::to_string(rank) + TraceWords::kPredicted + label_,
                     .parent = parent,
                     .order = rank});
  return track;
}

void PredictionTrace::BeginSlice(int rank, size_t line, uint64_t ns, const std::string& name, const Details& details) {
  const uint64_t track = LineTrack(rank, line);
  v1::TracePacket& packet = packets_.Event(TrackEvent::TYPE_SLICE_BEGIN, track, begin_ns_ + ns, name);
  for (const auto& [key, text] : details.texts) packets_.AddText(key, text, &packet);
  for (const auto& [key, number] : details.numbers) packets_.AddNumber(key, number, &packet);
  for (const uint64_t flow : details.flows) packet.mutable_track_event()->add_flow_ids(flow);
  packets_.Append(packet);
}

void PredictionTrace::EndSlice(int rank, size_t line, uint64_t ns, uint64_t flow) {
  v1::TracePacket& packet = packets_.Event(TrackEvent::TYPE_SLICE_END, LineTrack(rank, line), begin_ns_ + ns);
  if (flow != 0) packet.mutable_track_event()->add_terminating_flow_ids(flow);
  packets_.Append(packet);
}

absl::Status PredictionTrace::Write() {
  const std::string packets = packets_.Take();
  if (run_bytes_ == 0) return runtime::WriteWholeFile(path_, packets);
  std::ifstream run(path_, std::ios::binary);
  if (!run) return absl::UnavailableError(path_ + ": " + std::strerror(errno));
  std::string block;
  uint64_t left = run_bytes_;
  bool ended = false;
  return runtime::WriteWholeFile(path_, [&]() -> absl::StatusOr<std::string_view> {
    if (ended) return std::string_view();
    ended = left == 0;
    if (ended) return packets;
    block.resize(std::min<uint64_t>(left, kBlock));
    run.read(block.data(), static_cast<std::streamsize>(block.size()));
    if (static_cast<size_t>(run.gcount()) != block.size()) return absl::UnavailableError(path_ + " can't be read");
    left -= block.size();
    return block;
  });
}

}  // namespace cohort::tools
