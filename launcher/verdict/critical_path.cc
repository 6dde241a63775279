#include "cohort/launcher/verdict/critical_path.h"

#include <algorithm>
#include <utility>

namespace cohort::launcher {

CriticalPath::CriticalPath(const Timelines& timelines) : timelines_(timelines) {
  for (const auto& [rank, line] : timelines.ranks) {
    Waits& waits = waits_[rank];
    for (size_t i = 0; i < line.size(); ++i) {
      if (!line[i].waited) continue;
      waits.calls.push_back(i);
      if (line[i].blocked_ns < line[i].release_ns) waits.blocked.push_back({line[i].blocked_ns, line[i].release_ns});
    }
    std::stable_sort(waits.calls.begin(), waits.calls.end(), [&line = line](size_t one, size_t other) {
      return line[one].call.end_ns < line[other].call.end_ns;
    });
    for (const size_t call : waits.calls) {
      const bool later = waits.latest.empty() || line[call].release_ns >= line[waits.latest.back()].release_ns;
      waits.latest.push_back(later ? call : waits.latest.back());
    }
    std::sort(waits.blocked.begin(), waits.blocked.end(),
              [](const Span& one, const Span& other) { return one.begin_ns < other.begin_ns; });
    std::vector<Span> merged;
    for (const Span& span : waits.blocked) {
      if (merged.empty() || span.begin_ns > merged.back().end_ns) {
        merged.push_back(span);
      } else {
        merged.back().end_ns = std::max(merged.back().end_ns, span.end_ns);
      }
    }
    waits.blocked = std::move(merged);
  }
}

Span CallSpan(const std::vector<PlacedCall>& line, size_t call) {
  const PlacedCall& placed = line[call];
  const uint64_t end_ns = call + 1 < line.size() ? line[call + 1].own_begin_ns : placed.call.end_ns;
  const uint64_t begin_ns = placed.transfer().begin_ns;
  return {begin_ns, std::max(begin_ns, end_ns)};
}

// From the call that the rank is in at the beginning of the span to the own time in which the span ends.
void CriticalPath::AddPieces(uint32_t rank, const Span& span, std::vector<PathPiece>* path) const {
  const std::vector<PlacedCall>& line = timelines_.ranks.at(rank);
  const auto from = std::upper_bound(line.begin(), line.end(), span.begin_ns,
                                     [](uint64_t ns, const PlacedCall& one) { return ns < one.call.start_ns; });
  const size_t first = static_cast<size_t>(from - line.begin());
  std::vector<PathPiece> pieces;
  const auto add = [&](PathPiece::Kind kind, size_t call, const Span& its) {
    const Span part = its.In(span);
    if (part.length_ns() > 0) pieces.push_back({.kind = kind, .rank = rank, .call = call, .span = part});
  };
  for (size_t i = first == 0 ? 0 : first - 1; i < line.size() && line[i].own_begin_ns < span.end_ns; ++i) {
    add(PathPiece::Kind::kOwn, i, {line[i].own_begin_ns, line[i].call.start_ns});
    add(PathPiece::Kind::kCall, i, {line[i].call.start_ns, CallSpan(line, i).end_ns});
  }
  if (!line.empty()) add(PathPiece::Kind::kOwn, line.size(), {line.back().call.end_ns, span.end_ns});
  path->insert(path->end(), pieces.rbegin(), pieces.rend());
}

std::vector<PathPiece> CriticalPath::Find(uint32_t rank, const Span& span) const {
  std::vector<PathPiece> path;
  uint64_t to_ns = span.end_ns;
  size_t jumps = 0;
  for (const size_t most = timelines_.meetings.size() + timelines_.ranks.size(); jumps <= most; ++jumps) {
    const auto found = waits_.find(rank);
    if (found == waits_.end()) break;
    const Waits& waits = found->second;
    const std::vector<PlacedCall>& line = timelines_.ranks.at(rank);
    const auto behind = std::upper_bound(waits.calls.begin(), waits.calls.end(), to_ns,
                                         [&line](uint64_t ns, size_t call) { return ns < line[call].call.end_ns; });
    const PlacedCall* wait = behind == waits.calls.begin()
                                 ? nullptr
                                 : &line[waits.latest[static_cast<size_t>(behind - waits.calls.begin()) - 1]];
    if (wait == nullptr || wait->release_ns <= span.begin_ns) break;
    AddPieces(rank, {wait->release_ns, to_ns}, &path);
    rank = wait->cause_rank;
    to_ns = timelines_.ranks.at(rank)[wait->cause].call.start_ns;  // the release by its own clock
  }
  AddPieces(rank, {span.begin_ns, to_ns}, &path);
  return path;
}

std::map<uint32_t, uint64_t> CriticalPath::Blocked(const std::vector<Span>& spans) const {
  std::map<uint32_t, uint64_t> blocked_ns;
  for (const auto& [rank, waits] : waits_) {
    uint64_t sum_ns = 0;
    for (const Span& span : spans) {
      auto at = std::lower_bound(waits.blocked.begin(), waits.blocked.end(), span.begin_ns,
                                 [](const Span& one, uint64_t ns) { return one.end_ns < ns; });
      for (; at != waits.blocked.end() && at->begin_ns < span.end_ns; ++at) sum_ns += at->In(span).length_ns();
    }
    if (sum_ns > 0) blocked_ns[rank] = sum_ns;
  }
  return blocked_ns;
}

}  // namespace cohort::launcher
