#include "cohort/launcher/verdict/steps.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cohort/launcher/verdict/statistics.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::launcher {
namespace {

constexpr size_t kFewestSteps = 3;
constexpr size_t kMostCallsLooked = 20'000;  // the last ones of each rank
constexpr size_t kMostCandidates = 64;       // symbols of a rank; its calls are gone through for each
constexpr double kGoodEnough = 0.8;          // of the best score
constexpr double kLeastScore = 0.3;

using Line = std::vector<PlacedCall>;

// The case for a symbol as the last call of each step.
struct Anchor {
  double score = 0;     // the part of the calls, and of the time, that is in intervals of one kind
  size_t count = 0;     // of its calls
  int members = 0;      // of its group; 0 where not all wait for all
  uint64_t gap_ns = 0;  // the usual time behind it that is the rank's own
};

// Several intervals between calls of the anchor are of one kind where the same symbols are in them: a loop in a step
// may go round more or less often.
struct IntervalKind {
  size_t calls = 0;
  std::vector<uint64_t> lengths_ns;
};

Anchor Judge(const Line& line, size_t begin, uint64_t symbol) {
  Anchor anchor;
  std::unordered_map<uint64_t, IntervalKind> kinds;
  std::unordered_set<uint64_t> seen;
  std::vector<uint64_t> gaps_ns;
  uint64_t kind = 0;
  size_t calls = 0;
  const PlacedCall* latest = nullptr;
  for (size_t i = begin; i < line.size(); ++i) {
    const PlacedCall& placed = line[i];
    if (i > begin && line[i - 1].symbol == symbol) gaps_ns.push_back(placed.own_ns());
    ++calls;
    if (seen.insert(placed.symbol).second) kind += placed.symbol * 0x9e3779b97f4a7c15u;
    if (placed.symbol != symbol) continue;
    ++anchor.count;
    if (latest != nullptr) {
      kinds[kind].calls += calls;
      kinds[kind].lengths_ns.push_back(placed.call.end_ns - std::min(placed.call.end_ns, latest->call.end_ns));
    }
    latest = &placed;
    kind = 0;
    calls = 0;
    seen.clear();
  }
  if (anchor.count < kFewestSteps + 1) return anchor;
  double all_calls = 0, all_time = 0, most_calls = 0, most_time = 0;
  for (auto& [one, intervals] : kinds) {
    const double time =
        static_cast<double>(intervals.lengths_ns.size()) * static_cast<double>(Median(intervals.lengths_ns));
    all_calls += static_cast<double>(intervals.calls);
    all_time += time;
    if (intervals.calls > most_calls) {
      most_calls = static_cast<double>(intervals.calls);
      most_time = time;
    }
  }
  anchor.score = std::min(most_calls / std::max(all_calls, 1.0), all_time > 0 ? most_time / all_time : 1.0);
  anchor.members = MeetsAll(*latest->call.shape) ? latest->call.shape->group_size() : 0;
  anchor.gap_ns = Median(gaps_ns);
  return anchor;
}

// The time behind the calls of each symbol that is the ranks' own.
using Gaps = std::unordered_map<uint64_t, uint64_t>;

size_t FirstLooked(const Line& line) { return line.size() - std::min(line.size(), kMostCallsLooked); }

Gaps GapsOf(const Timelines& timelines) {
  Gaps gaps_ns;
  for (const auto& [rank, line] : timelines.ranks) {
    for (size_t i = FirstLooked(line) + 1; i < line.size(); ++i) gaps_ns[line[i - 1].symbol] += line[i].own_ns();
  }
  return gaps_ns;
}

// Counts that differ by less than a quarter or so are of one kind.
long KindOfCount(size_t count) { return std::lround(std::log(static_cast<double>(count)) / std::log(1.25)); }

// The symbols that may end steps. Those with counts of one kind may be of the same steps: each kind gives one in turn,
// first the one of most members, then that with the longest time behind it.
std::vector<uint64_t> CandidatesOf(const Line& line, const Gaps& gaps_ns) {
  struct Candidate {
    uint64_t symbol = 0;
    size_t count = 0;
    long kind = 0;  // of the count
    std::pair<int, uint64_t> fitness;
  };
  std::unordered_map<uint64_t, Candidate> found;
  for (size_t i = FirstLooked(line); i < line.size(); ++i) {
    Candidate& one = found[line[i].symbol];
    if (++one.count > 1) continue;
    const v1::CallShape& shape = *line[i].call.shape;
    const auto gap = gaps_ns.find(line[i].symbol);
    one.symbol = line[i].symbol;
    one.fitness = {MeetsAll(shape) ? shape.group_size() : 0, gap == gaps_ns.end() ? 0 : gap->second};
  }
  std::vector<Candidate> order;
  for (auto& [symbol, one] : found) {
    one.kind = KindOfCount(one.count);
    if (one.count > kFewestSteps) order.push_back(one);
  }
  std::sort(order.begin(), order.end(), [](const Candidate& one, const Candidate& other) {
    return std::tuple(one.kind, other.fitness, one.symbol) < std::tuple(other.kind, one.fitness, other.symbol);
  });
  std::vector<std::pair<size_t, uint64_t>> turns;  // place among those of its kind
  for (size_t i = 0; i < order.size(); ++i) {
    const bool same = i > 0 && order[i - 1].kind == order[i].kind;
    turns.emplace_back(same ? turns.back().first + 1 : 0, order[i].symbol);
  }
  std::stable_sort(turns.begin(), turns.end(),
                   [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<uint64_t> symbols;
  for (const auto& [turn, symbol] : turns) {
    if (symbols.size() < kMostCandidates) symbols.push_back(symbol);
  }
  return symbols;
}

std::map<uint64_t, Anchor> AnchorsOf(const Line& line, const Gaps& gaps_ns) {
  std::map<uint64_t, Anchor> anchors;
  for (const uint64_t symbol : CandidatesOf(line, gaps_ns)) anchors[symbol] = Judge(line, FirstLooked(line), symbol);
  return anchors;
}

// The best of the symbols: of those that are nearly as good as the best, the one that comes most often.
std::optional<uint64_t> Choose(const std::map<uint64_t, Anchor>& anchors) {
  double best = kLeastScore;
  for (const auto& [symbol, anchor] : anchors) best = std::max(best, anchor.score);
  std::optional<uint64_t> chosen;
  const Anchor* its = nullptr;
  for (const auto& [symbol, anchor] : anchors) {
    if (anchor.score < kGoodEnough * best) continue;
    // Counts that differ by one belong to the same steps, of which the ends are not known.
    const bool more = its != nullptr && anchor.count > its->count + its->count / 10 + 1;
    const bool fewer = its != nullptr && its->count > anchor.count + anchor.count / 10 + 1;
    if (its != nullptr &&
        (fewer || (!more && std::pair(anchor.members, anchor.gap_ns) <= std::pair(its->members, its->gap_ns)))) {
      continue;
    }
    chosen = symbol;
    its = &anchor;
  }
  return chosen;
}

// The anchor of each rank, by their order: the same for all if there is one.
std::vector<std::optional<uint64_t>> ChooseAnchors(const Timelines& timelines) {
  const Gaps gaps_ns = GapsOf(timelines);
  std::vector<std::map<uint64_t, Anchor>> of_ranks;
  std::map<uint64_t, Anchor> common;
  for (const auto& [rank, line] : timelines.ranks) {
    of_ranks.push_back(AnchorsOf(line, gaps_ns));
    for (const auto& [symbol, anchor] : of_ranks.back()) {
      Anchor& sum = common[symbol];
      sum.score += anchor.score / static_cast<double>(timelines.ranks.size());
      sum.count = std::max(sum.count, anchor.count);
      sum.members = std::max(sum.members, anchor.members);
      sum.gap_ns = std::max(sum.gap_ns, anchor.gap_ns);
    }
  }
  const std::optional<uint64_t> of_all = Choose(common);
  std::vector<std::optional<uint64_t>> chosen;
  for (const auto& anchors : of_ranks) {
    const bool has = of_all && anchors.contains(*of_all) && anchors.at(*of_all).score >= kLeastScore;
    chosen.push_back(has ? of_all : Choose(anchors));
  }
  return chosen;
}

// The calls after which a rank is in the next step, with the number of that call among all ranks.
struct Ends {
  std::vector<size_t> calls;
  std::vector<uint64_t> ns;
};

Ends EndsOf(const Line& line, uint64_t symbol) {
  Ends ends;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i].symbol != symbol || line[i].open()) continue;
    ends.calls.push_back(i);
    ends.ns.push_back(line[i].call.end_ns);
  }
  return ends;
}

// Steps by one anchor, whose sequence numbers tell which calls belong together; and the parts of ranks with another
// anchor by the time in which they lie.
class StepsByCalls {
 public:
  explicit StepsByCalls(const Timelines& timelines) : timelines_(timelines), anchors_(ChooseAnchors(timelines)) {}

  std::vector<Step> Find() {
    const std::optional<uint64_t> reference = Reference();
    if (!reference) return {};
    FindNumbers(*reference);
    if (numbers_.size() < kFewestSteps + 1) return {};
    steps_.resize(count_);
    for (Step& step : steps_) step.parts.resize(timelines_.ranks.size());
    size_t at = 0;
    for (const auto& [rank, line] : timelines_.ranks) {
      if (anchors_[at] == reference) AddByNumber(line, *reference, at);
      ++at;
    }
    FindSpans();
    for (size_t i = 0; i < steps_.size(); ++i) steps_[i].number = i;
    // The beginning of the others, as of the first one, is not known.
    std::erase_if(steps_, [](const Step& step) {
      return std::none_of(step.parts.begin(), step.parts.end(),
                          [](const Step::Part& part) { return part.first < part.last; });
    });
    at = 0;
    for (const auto& [rank, line] : timelines_.ranks) {
      if (anchors_[at] && anchors_[at] != reference) AddByTime(line, *anchors_[at], at);
      ++at;
    }
    ExtendSpans();
    return std::move(steps_);
  }

 private:
  // The anchor of most ranks.
  std::optional<uint64_t> Reference() const {
    std::map<uint64_t, size_t> votes;
    for (const std::optional<uint64_t>& anchor : anchors_) {
      if (anchor) ++votes[*anchor];
    }
    const auto most = std::max_element(votes.begin(), votes.end(),
                                       [](const auto& one, const auto& other) { return one.second < other.second; });
    return most == votes.end() ? std::nullopt : std::optional<uint64_t>(most->first);
  }

  // Numbers the calls that end steps, all ranks' together, by epoch and sequence.
  void FindNumbers(uint64_t reference) {
    std::set<std::pair<uint64_t, uint64_t>> found;
    size_t at = 0;
    for (const auto& [rank, line] : timelines_.ranks) {
      if (anchors_[at++] != reference) continue;
      for (const size_t call : EndsOf(line, reference).calls) found.insert(NumberOf(line[call]));
    }
    const std::vector<std::pair<uint64_t, uint64_t>> known = NumbersOfGroup(reference);
    size_t step = 0;
    std::optional<std::pair<uint64_t, uint64_t>> before;
    for (const auto& number : found) {
      if (before && before->first == number.first) {
        const auto between = std::lower_bound(known.begin(), known.end(), number) -
                             std::upper_bound(known.begin(), known.end(), *before);
        // Calls are missing in between: a step without an end stands for them.
        if (static_cast<uint64_t>(between) + 1 < number.second - before->second) ++step;
      }
      numbers_.emplace(number, step++);
      before = number;
    }
    count_ = step;
  }

  // The numbers of all calls that are counted with those of the anchor, whatever they are.
  std::vector<std::pair<uint64_t, uint64_t>> NumbersOfGroup(uint64_t reference) const {
    std::set<std::pair<uint64_t, uint64_t>> numbers;
    std::optional<uint64_t> group;  // of a collective; messages are counted by themselves
    for (const auto& [rank, line] : timelines_.ranks) {
      for (const PlacedCall& placed : line) {
        const bool message = runtime::IsPointToPoint(static_cast<uint16_t>(placed.call.shape->kind()));
        if (placed.symbol == reference && !message) group = placed.call.shape->group();
        if (placed.symbol == reference) numbers.insert(NumberOf(placed));
      }
    }
    for (const auto& [rank, line] : timelines_.ranks) {
      for (const PlacedCall& placed : line) {
        const bool message = runtime::IsPointToPoint(static_cast<uint16_t>(placed.call.shape->kind()));
        if (group && !message && placed.call.shape->group() == *group) numbers.insert(NumberOf(placed));
      }
    }
    return {numbers.begin(), numbers.end()};
  }

  static std::pair<uint64_t, uint64_t> NumberOf(const PlacedCall& placed) {
    return {placed.call.shape->epoch(), placed.call.sequence};
  }

  void AddByNumber(const Line& line, uint64_t symbol, size_t at) {
    std::optional<std::pair<size_t, size_t>> before;  // the latest end: its step and its call
    for (const size_t call : EndsOf(line, symbol).calls) {
      const size_t step = numbers_.at(NumberOf(line[call]));
      if (before && step <= before->first) continue;
      Step::Part& part = steps_[step].parts[at];
      part.end_ns = line[call].call.end_ns;
      // Without the end of the step before, the beginning of this one is missing too.
      if (before && before->first + 1 == step) part = {before->second + 1, call + 1, part.end_ns};
      before = {step, call};
    }
  }

  void AddByTime(const Line& line, uint64_t symbol, size_t at) {
    const Ends ends = EndsOf(line, symbol);
    for (size_t i = 1; i < ends.calls.size(); ++i) {
      const uint64_t middle = ends.ns[i - 1] + (ends.ns[i] - std::min(ends.ns[i], ends.ns[i - 1])) / 2;
      const auto step = std::lower_bound(steps_.begin(), steps_.end(), middle,
                                         [](const Step& one, uint64_t ns) { return one.span.end_ns < ns; });
      if (step == steps_.end() || middle < step->span.begin_ns || step->parts[at].end_ns != 0) continue;
      step->parts[at] = {ends.calls[i - 1] + 1, ends.calls[i] + 1, ends.ns[i]};
    }
  }

  void FindSpans() {
    uint64_t before_ns = timelines_.begin_ns;
    for (Step& step : steps_) {
      step.span = {before_ns, std::max(before_ns, EndOf(step))};
      before_ns = step.span.end_ns;
    }
  }

  // To the ends of the ranks that were added by time. The next step begins there.
  void ExtendSpans() {
    for (size_t i = 0; i < steps_.size(); ++i) {
      steps_[i].span.end_ns = std::max(steps_[i].span.end_ns, EndOf(steps_[i]));
      const bool follows = i > 0 && steps_[i - 1].number + 1 == steps_[i].number;
      if (follows) steps_[i].span.begin_ns = steps_[i - 1].span.end_ns;
    }
  }

  static uint64_t EndOf(const Step& step) {
    uint64_t end_ns = 0;
    for (const Step::Part& part : step.parts) end_ns = std::max(end_ns, part.end_ns);
    return end_ns;
  }

  const Timelines& timelines_;
  const std::vector<std::optional<uint64_t>> anchors_;
  std::map<std::pair<uint64_t, uint64_t>, size_t> numbers_;  // of a call: its step
  size_t count_ = 0;                                         // of steps
  std::vector<Step> steps_;
};

// A step of a rank lasts from its mark to its next one, if that has the next number. So a program that goes back after
// a failure ends no step by that. Where it makes a step several times the last one counts.
std::vector<Step> StepsByMarks(const History& history, const Timelines& timelines) {
  std::map<uint32_t, std::map<uint64_t, uint64_t>> marks;  // by rank and time: the number
  for (const StepMark& mark : history.marks) marks[mark.rank].emplace(mark.ns, mark.number);
  std::map<uint64_t, Step> steps;
  size_t place = 0;
  for (const auto& [rank, line] : timelines.ranks) {
    const auto first_from = [&line = line](uint64_t ns) {
      const auto found = std::lower_bound(
          line.begin(), line.end(), ns, [](const PlacedCall& one, uint64_t time) { return one.call.start_ns < time; });
      return static_cast<size_t>(found - line.begin());
    };
    const std::map<uint64_t, uint64_t>& own = marks[rank];
    for (auto begin = own.begin(); begin != own.end() && std::next(begin) != own.end(); ++begin) {
      const auto end = std::next(begin);
      const size_t first = first_from(begin->first);
      if (end->second != begin->second + 1 || first == 0) continue;
      Step& step = steps[begin->second];
      step.parts.resize(timelines.ranks.size());
      step.parts[place] = {first, first_from(end->first), end->first};
      step.span.begin_ns = std::max(step.span.begin_ns, begin->first);
      step.span.end_ns = std::max(step.span.end_ns, end->first);
    }
    ++place;
  }
  std::vector<Step> found;
  for (auto& [number, step] : steps) {
    step.number = number;
    if (step.span.length_ns() > 0) found.push_back(std::move(step));
  }
  return found;
}

void NumberOccurrences(const Steps& steps, Timelines* timelines) {
  std::unordered_map<uint64_t, uint64_t> counts;
  for (const Step& step : steps.all) {
    size_t at = 0;
    for (auto& [rank, line] : timelines->ranks) {
      const Step::Part& part = step.parts[at++];
      counts.clear();
      for (size_t i = part.first; i < part.last; ++i) line[i].occurrence = counts[line[i].symbol]++;
    }
  }
}

}  // namespace

Steps FindSteps(const History& history, Timelines* timelines) {
  Steps steps;
  steps.all = StepsByMarks(history, *timelines);
  const bool marked = !steps.all.empty();  // a program may mark some steps, and not those that are seen
  if (!marked) steps.all = StepsByCalls(*timelines).Find();
  if (!steps.all.empty()) steps.source = marked ? Steps::Source::kMarks : Steps::Source::kCalls;
  NumberOccurrences(steps, timelines);
  return steps;
}

}  // namespace cohort::launcher
