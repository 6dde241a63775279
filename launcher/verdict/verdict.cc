#include "cohort/launcher/verdict/verdict.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/launcher/verdict/every_step.h"
#include "cohort/launcher/verdict/evidence.h"
#include "cohort/launcher/verdict/open_waits.h"
#include "cohort/launcher/verdict/slow_step.h"
#include "cohort/launcher/verdict/statistics.h"

namespace cohort::launcher {
namespace {

constexpr uint64_t kLongWaitNs = 1'000'000'000;  // of an open call, where no step is longer
constexpr double kSlowShare = 0.15;              // beyond the usual step
constexpr double kSlowNoises = 4;                // and beyond the usual noise
constexpr uint64_t kLeastSlowNs = 500'000;       // a shorter delay is the scheduler's
constexpr double kMostOfLost = 0.95;             // of the time beyond the usual; the rest does not matter
constexpr size_t kMostSlow = 10;                 // that are explained
constexpr double kLeastSure = 0.35;              // of a culprit

// The times of all steps.
struct StepTimes {
  std::vector<uint64_t> ns;
  uint64_t usual_ns = 0;
  double slow_ns = 0;         // a step that takes longer is slow
  std::vector<size_t> slow;   // those in which nearly all of the time was lost, the slowest first
  std::vector<size_t> usual;  // the others
  uint64_t lost_ns = 0;       // by the slow ones, beyond the usual
};

// `slow`: the slowest first. The number of those that took most of the lost time, and of those that are nearly as slow.
size_t CountThatMatter(const std::vector<size_t>& slow, const std::vector<uint64_t>& ns, uint64_t usual_ns) {
  uint64_t all_ns = 0, seen_ns = 0, last_ns = 0;
  for (const size_t step : slow) all_ns += ns[step] - usual_ns;
  size_t count = 0;
  for (; count < slow.size(); ++count) {
    const uint64_t beyond_ns = ns[slow[count]] - usual_ns;
    const bool enough = static_cast<double>(seen_ns) >= kMostOfLost * static_cast<double>(all_ns);
    if (beyond_ns < kLeastSlowNs || (enough && 2 * beyond_ns < last_ns)) break;
    if (!enough) last_ns = beyond_ns;
    seen_ns += beyond_ns;
  }
  return count;
}

StepTimes TimesOf(const Steps& steps) {
  StepTimes times;
  for (const Step& step : steps.all) times.ns.push_back(step.span.length_ns());
  times.usual_ns = Median(times.ns);
  const auto usual_ns = static_cast<double>(times.usual_ns);
  times.slow_ns = usual_ns + std::max(kSlowShare * usual_ns, kSlowNoises * static_cast<double>(Spread(times.ns)));
  for (size_t i = 0; i < times.ns.size(); ++i) {
    if (static_cast<double>(times.ns[i]) > times.slow_ns) times.slow.push_back(i);
  }
  std::stable_sort(times.slow.begin(), times.slow.end(),
                   [&times](size_t one, size_t other) { return times.ns[one] > times.ns[other]; });
  times.slow.resize(CountThatMatter(times.slow, times.ns, times.usual_ns));
  std::vector<bool> slow(times.ns.size());
  for (const size_t step : times.slow) {
    times.lost_ns += times.ns[step] - times.usual_ns;
    slow[step] = true;
  }
  for (size_t i = 0; i < times.ns.size(); ++i) {
    if (!slow[i]) times.usual.push_back(i);
  }
  return times;
}

bool IsSure(const std::optional<Culprit>& culprit) { return culprit && culprit->sure >= kLeastSure; }

class Judgement {
 public:
  // `history` outlives this.
  explicit Judgement(const History& history) : history_(history), evidence_(history), times_(TimesOf(evidence_.steps)) {
    const Steps& steps = evidence_.steps;
    verdict_.ranks = evidence_.node_of.size();
    verdict_.calls = history.calls.size();
    verdict_.length_ns = evidence_.timelines.end_ns - evidence_.timelines.begin_ns;
    verdict_.source = steps.source;
    verdict_.steps = steps.all.size();
    if (steps.all.empty()) return;
    verdict_.first_step = steps.all.front().number;
    verdict_.last_step = steps.all.back().number;
    verdict_.usual_ns = times_.usual_ns;
    verdict_.slow_steps = times_.slow.size();
    verdict_.slow_lost_ns = times_.lost_ns;
    verdict_.in_calls = PartInCalls(evidence_, times_.usual);
  }

  absl::StatusOr<Verdict> OfStep(uint64_t number) {
    const auto& all = evidence_.steps.all;
    const auto found =
        std::find_if(all.begin(), all.end(), [number](const Step& step) { return step.number == number; });
    if (found == all.end()) {
      const std::string which = all.empty() ? ": no calls repeat that would be steps"
                                            : "; give one from " + std::to_string(verdict_.first_step) + " to " +
                                                  std::to_string(verdict_.last_step);
      return WithRemedy(Remedy::kNoSuchStep,
                        absl::OutOfRangeError("there is no step " + std::to_string(number) + which));
    }
    ExplainSlowSteps();
    const size_t step = static_cast<size_t>(found - all.begin());
    verdict_.step = Verdict::StepTime{.number = number, .ns = times_.ns[step], .rank = std::nullopt};
    std::optional<Culprit> culprit;
    if (static_cast<double>(times_.ns[step]) > times_.slow_ns) {
      culprit = SlowPart(step);
      verdict_.kind = Verdict::Kind::kSlowStep;
    } else {
      culprit = FindSlowRank(evidence_, {step}, times_.usual);
      verdict_.kind = Verdict::Kind::kEveryStep;
    }
    if (!IsSure(culprit)) {
      verdict_.kind = Verdict::Kind::kNothing;
      culprit.reset();
    }
    if (culprit && !culprit->ranks.empty()) verdict_.step->rank = culprit->ranks[0];
    verdict_.culprit = std::move(culprit);
    return std::move(verdict_);
  }

  Verdict OfAll() {
    const uint64_t long_ns = std::max(2 * times_.usual_ns, kLongWaitNs);
    std::optional<Culprit> now = FindOpenWait(evidence_, long_ns);
    if (!IsSure(now)) {
      if (const std::optional<History> until = UntilFailure(history_, long_ns)) {
        now = FindOpenWait(Evidence(*until), long_ns);
        verdict_.until_failure = IsSure(now);
      }
    }
    ExplainSlowSteps();
    if (IsSure(now)) return Say(Verdict::Kind::kWaitsNow, std::move(now));
    if (evidence_.steps.all.empty()) {
      std::optional<Culprit> slow = FindSlowRank(evidence_);
      return IsSure(slow) ? Say(Verdict::Kind::kAllOfIt, std::move(slow)) : std::move(verdict_);
    }
    std::optional<Culprit> always = FindSlowRank(evidence_, times_.usual, times_.usual);
    const uint64_t always_ns = IsSure(always) ? always->lost_ns * times_.usual.size() : 0;
    const size_t told = StepToTell();
    if (IsSure(always) && (always_ns >= times_.lost_ns || told == slow_.size())) {
      return Say(Verdict::Kind::kEveryStep, std::move(always));
    }
    if (told == slow_.size()) return std::move(verdict_);
    verdict_.step = verdict_.slow[told];
    return Say(Verdict::Kind::kSlowStep, std::move(slow_[told]));
  }

 private:
  std::optional<Culprit> SlowPart(size_t step) const {
    return FindSlowPart(evidence_, step, times_.ns[step] - times_.usual_ns);
  }

  void ExplainSlowSteps() {
    for (size_t i = 0; i < std::min(times_.slow.size(), kMostSlow); ++i) {
      const size_t step = times_.slow[i];
      std::optional<Culprit> culprit = SlowPart(step);
      verdict_.slow.push_back({evidence_.steps.all[step].number, times_.ns[step], std::nullopt});
      if (IsSure(culprit) && !culprit->ranks.empty()) verdict_.slow.back().rank = culprit->ranks[0];
      slow_.push_back(std::move(culprit));
    }
  }

  // The slowest step, or one that is nearly as slow, of which the reason is known: nobody looked at the ranks before
  // `dlaunch why` did. The number of all where the slowest one has no culprit for sure.
  size_t StepToTell() const {
    if (slow_.empty() || !IsSure(slow_[0])) return slow_.size();
    for (size_t i = 0; i < slow_.size(); ++i) {
      const bool is_nearly = 2 * (verdict_.slow[i].ns - times_.usual_ns) >= verdict_.slow[0].ns - times_.usual_ns;
      const bool is_same = IsSure(slow_[i]) && slow_[i]->ranks == slow_[0]->ranks;
      if (is_nearly && is_same && slow_[i]->reason.activity != Activity::kUnknown) return i;
    }
    return 0;
  }

  Verdict Say(Verdict::Kind kind, std::optional<Culprit> culprit) {
    verdict_.kind = kind;
    verdict_.culprit = std::move(culprit);
    return std::move(verdict_);
  }

  const History& history_;
  const Evidence evidence_;
  const StepTimes times_;
  std::vector<std::optional<Culprit>> slow_;  // of the steps in `verdict_.slow`
  Verdict verdict_;
};

// The verdict on a job without calls.
Verdict OfUnjoined(const History& history) {
  Verdict verdict;
  verdict.kind = Verdict::Kind::kWaitsNow;
  verdict.ranks = history.unjoined.size();
  verdict.culprit = BlameUnjoined(history.unjoined);
  return verdict;
}

}  // namespace

absl::StatusOr<Verdict> FindVerdict(const History& history, std::optional<uint64_t> step) {
  if (history.calls.empty() && !history.unjoined.empty() && !step) return OfUnjoined(history);
  if (history.calls.empty()) return absl::NotFoundError("there are no calls");
  Judgement judgement(history);
  if (step) return judgement.OfStep(*step);
  return judgement.OfAll();
}

}  // namespace cohort::launcher
