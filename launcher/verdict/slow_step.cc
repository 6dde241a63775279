#include "cohort/launcher/verdict/slow_step.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

constexpr size_t kMostUsual = 20;       // times of a place that are looked at for what is usual there
constexpr double kMostExplained = 0.9;  // pieces that are left out explain less

struct Excess {
  PathPiece piece;
  double ns = 0;  // beyond the usual; below it where negative
};

// The time of a piece beyond the usual one at its place, of which it may be a part.
double ExcessOf(double piece_ns, double whole_ns, std::optional<uint64_t> usual_ns) {
  const double excess_ns = whole_ns - static_cast<double>(usual_ns.value_or(0));
  if (excess_ns > 0) return std::min(excess_ns, piece_ns);
  return whole_ns > 0 ? excess_ns * piece_ns / whole_ns : 0;
}

double ExcessOf(const Evidence& evidence, const PathPiece& piece, size_t step) {
  const std::vector<PlacedCall>& line = evidence.LineOf(piece.rank);
  if (piece.call >= line.size()) return 0;  // the rank calls nothing more
  const PlacedCall& placed = line[piece.call];
  const auto piece_ns = static_cast<double>(piece.span.length_ns());
  if (piece.kind == PathPiece::Kind::kOwn) {
    return ExcessOf(piece_ns, static_cast<double>(placed.own_ns()), evidence.usual.OwnNs(piece.rank, placed, step));
  }
  return ExcessOf(piece_ns, static_cast<double>(CallSpan(line, piece.call).length_ns()),
                  evidence.usual.CallNs(piece.rank, placed, step));
}

// The largest pieces that explain most of it.
std::vector<Excess> Largest(std::vector<Excess> pieces) {
  std::erase_if(pieces, [](const Excess& one) { return one.ns <= 0; });
  std::sort(pieces.begin(), pieces.end(), [](const Excess& one, const Excess& other) { return one.ns > other.ns; });
  double sum = 0, seen = 0;
  for (const Excess& one : pieces) sum += one.ns;
  for (size_t i = 0; i < pieces.size(); ++i) {
    seen += pieces[i].ns;
    if (seen >= kMostExplained * sum) pieces.resize(i + 1);
  }
  return pieces;
}

std::vector<Span> SpansOf(const std::vector<Excess>& pieces) {
  std::vector<Span> spans;
  for (const Excess& one : pieces) spans.push_back(one.piece.span);
  std::sort(spans.begin(), spans.end(),
            [](const Span& one, const Span& other) { return one.begin_ns < other.begin_ns; });
  return spans;
}

// The rank's doings at these places in other steps.
Doings UsualDoings(const Evidence& evidence, const std::vector<Excess>& pieces, size_t step) {
  Doings usual;
  for (const Excess& one : pieces) {
    const std::vector<PlacedCall>& line = evidence.LineOf(one.piece.rank);
    std::vector<Span> spans;
    for (const size_t call : evidence.usual.Others(one.piece.rank, line[one.piece.call], step, kMostUsual)) {
      spans.push_back({line[call].own_begin_ns, line[call].call.start_ns});
    }
    if (spans.empty()) continue;
    const Doings its = evidence.doings.In(one.piece.rank, spans);
    const double share = its.seen_ns > 0 ? its.asked_ns / its.seen_ns / static_cast<double>(spans.size()) : 0;
    for (size_t i = 0; i < kActivities; ++i) usual.ns[i] += its.ns[i] * share;
  }
  return usual;
}

Culprit BlameRank(const Evidence& evidence, const std::vector<Excess>& pieces, size_t step) {
  Culprit culprit;
  const uint32_t rank = pieces.front().piece.rank;
  culprit.ranks = {rank};
  culprit.nodes = {evidence.NodeOf(rank)};
  const std::vector<Excess> largest = Largest(pieces);
  const std::vector<Span> spans = SpansOf(largest);
  evidence.Name(rank, largest.front().piece.call, &culprit);
  evidence.NameWaiting(spans, &culprit);
  culprit.reason = FindReason(evidence.doings.In(rank, spans), UsualDoings(evidence, largest, step));
  return culprit;
}

double SumOf(const std::vector<Excess>& pieces) {
  double sum = 0;
  for (const Excess& one : pieces) sum += one.ns;
  return sum;
}

}  // namespace

std::optional<Culprit> FindSlowPart(const Evidence& evidence, size_t step, uint64_t beyond_ns) {
  std::map<uint32_t, std::vector<Excess>> of_ranks;
  std::map<size_t, std::vector<Excess>> of_calls;  // by meeting
  for (const PathPiece& piece : evidence.PathOf(step)) {
    const Excess excess{piece, ExcessOf(evidence, piece, step)};
    const std::vector<PlacedCall>& line = evidence.LineOf(piece.rank);
    if (piece.kind == PathPiece::Kind::kOwn) {
      if (piece.call < line.size()) of_ranks[piece.rank].push_back(excess);
    } else {
      of_calls[line[piece.call].meeting].push_back(excess);
    }
  }
  double all = 0, most = 0;
  const std::vector<Excess>* rank = nullptr;
  const std::pair<const size_t, std::vector<Excess>>* call = nullptr;
  for (const auto& [number, pieces] : of_ranks) {
    const double sum = SumOf(pieces);
    all += std::max(sum, 0.0);
    if (sum <= most) continue;
    most = sum;
    rank = &pieces;
  }
  for (const auto& one : of_calls) {
    const double sum = SumOf(one.second);
    all += std::max(sum, 0.0);
    if (sum <= most) continue;
    most = sum;
    call = &one;
  }
  if (rank == nullptr && call == nullptr) return std::nullopt;
  Culprit culprit;
  double sure = most / all;
  if (call == nullptr) {
    culprit = BlameRank(evidence, *rank, step);
  } else {
    const std::vector<Span> spans = SpansOf(Largest(call->second));
    culprit = evidence.BlameCall(evidence.timelines.meetings[call->first], spans);
    sure *= culprit.sure;
  }
  culprit.lost_ns = static_cast<uint64_t>(most);
  // Parts that together explain little of what the step took longer leave the cause open.
  culprit.sure = sure * std::min(1.0, most / std::max(0.5 * static_cast<double>(beyond_ns), 1.0));
  return culprit;
}

}  // namespace cohort::launcher
