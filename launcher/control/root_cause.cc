#include "cohort/launcher/control/root_cause.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/control/describe.h"

namespace cohort::launcher {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

// More announced failures than this say nothing new about the first cause.
constexpr size_t kMaxFailuresWeighed = 64;
constexpr size_t kMaxOthersOneByOne = 64;
constexpr int kMaxExitsWithLines = 8;
constexpr int kMaxExitsWithPlace = 1024;

// A failure that nothing else explains: exactly one of the three is set.
struct Candidate {
  std::optional<uint32_t> rank;
  const ReportedFailure* failure = nullptr;
  const ReportedStop* stop = nullptr;
  bool told = false;
  TimePoint at;
};

class Search {
 public:
  Search(const Roster& roster, const std::vector<ReportedFailure>& failures, const std::optional<ReportedStop>& stop)
      : roster_(roster), stop_(stop) {
    for (uint32_t rank = 0; rank < roster.rank_count(); ++rank) {
      const auto& exit = roster.rank(rank).exit;
      if (exit.has_value() && IsFailure(*exit)) failed_.push_back(rank);
    }
    for (const ReportedFailure& failure : failures) {
      const v1::GroupFailure& said = failure.failure;
      if (failure.announced && announced_.size() < kMaxFailuresWeighed) {
        announced_.push_back({&failure, {failure.members.begin(), failure.members.end()}});
      }
      if (said.from_rank() < 0 || !Failed(said.blamed_rank())) continue;
      if (said.from_rank() != said.blamed_rank()) blames_.emplace(said.from_rank(), said.blamed_rank());
      // A rank accuses itself when it aborts its group: what the group's failure then did to it is its own doing.
      if (!IsVerdict(said)) accused_.insert(static_cast<uint32_t>(said.blamed_rank()));
    }
  }

  const std::vector<uint32_t>& failed() const { return failed_; }

  std::optional<Candidate> Find() const {
    std::vector<Candidate> candidates;
    if (stop_.has_value()) candidates.push_back({{}, nullptr, &*stop_, false, stop_->at});
    for (const Announced& announced : announced_) {
      const bool has_victim = std::any_of(failed_.begin(), failed_.end(),
                                          [this, &announced](uint32_t rank) { return IsVictim(rank, announced); });
      if (!has_victim || Explained(announced)) continue;  // without a victim, the program has coped with it
      candidates.push_back({{}, announced.failure, nullptr, announced.failure->told, announced.failure->at});
    }
    for (uint32_t rank : failed_) {
      if (!Explained(rank)) candidates.push_back(OfRank(rank));
    }
    // Ranks that blame each other in a circle: take the first of them.
    if (candidates.empty()) {
      for (uint32_t rank : failed_) candidates.push_back(OfRank(rank));
    }
    if (candidates.empty()) return std::nullopt;
    return First(candidates);
  }

 private:
  struct Announced {
    const ReportedFailure* failure = nullptr;
    std::unordered_set<uint32_t> members;
  };

  bool Failed(int32_t rank) const {
    return rank >= 0 && std::binary_search(failed_.begin(), failed_.end(), static_cast<uint32_t>(rank));
  }
  bool Before(uint32_t rank, const ReportedFailure& failure) const { return roster_.rank(rank).gone_at < failure.at; }

  // Whether the failure of a group is the fault of the rank that it blames.
  bool Explained(const Announced& announced) const {
    const v1::GroupFailure& said = announced.failure->failure;
    if (!Failed(said.blamed_rank())) return false;
    return !IsVerdict(said) || Before(static_cast<uint32_t>(said.blamed_rank()), *announced.failure);
  }
  bool Explained(uint32_t rank) const {
    if (blames_.count(static_cast<int32_t>(rank)) > 0) return true;
    // That a rank failed after its group only suggests that it failed because of that; a rank's word weighs more.
    return std::any_of(announced_.begin(), announced_.end(), [this, rank](const Announced& announced) {
      return IsVictim(rank, announced) && (IsVerdict(announced.failure->failure) || accused_.count(rank) == 0);
    });
  }
  // Whether the rank failed as a member of the group, soon after the group did; of a watched group, which goes on,
  // while it waited in the call, or when it had given the call up.
  bool IsVictim(uint32_t rank, const Announced& announced) const {
    const ReportedFailure& failure = *announced.failure;
    const v1::GroupFailure& said = failure.failure;
    if (said.watched()) {
      const v1::CallState& doing = roster_.rank(rank).exit->doing();
      const bool incomplete = !doing.done() || doing.failed();  // the program may have aborted its communicator
      return announced.members.count(rank) > 0 && doing.present() && !doing.message() && incomplete &&
             doing.group() == said.group() && doing.epoch() == said.epoch() && doing.sequence() == said.sequence();
    }
    return announced.members.count(rank) > 0 && !Before(rank, failure) &&
           roster_.rank(rank).gone_at - failure.at < kConsequenceTime;
  }
  Candidate OfRank(uint32_t rank) const {
    return {rank, nullptr, nullptr, roster_.rank(rank).told, roster_.rank(rank).gone_at};
  }

  Candidate First(const std::vector<Candidate>& candidates) const {
    const auto earlier = [](const Candidate& a, const Candidate& b) {
      return std::tuple(a.told, a.at) < std::tuple(b.told, b.at);
    };
    const Candidate first = *std::min_element(candidates.begin(), candidates.end(), earlier);
    if (!first.rank.has_value()) return first;
    const v1::RankExit& exit = *roster_.rank(*first.rank).exit;
    if (LikelySignal(exit) != 0 || !exit.started() || exit.lost()) return first;
    std::optional<Candidate> killed;
    for (const Candidate& other : candidates) {
      if (!other.rank.has_value() || other.at > first.at + kLateDeath) continue;
      if (LikelySignal(*roster_.rank(*other.rank).exit) != SIGKILL) continue;
      if (!killed.has_value() || other.at < killed->at) killed = other;
    }
    return killed.value_or(first);
  }

  const Roster& roster_;
  const std::optional<ReportedStop>& stop_;
  std::vector<uint32_t> failed_;  // ascending
  std::vector<Announced> announced_;
  std::unordered_multimap<int32_t, int32_t> blames_;  // of failed ranks only
  std::unordered_set<uint32_t> accused_;              // by a peer's word, or their own
};

// The rank's own words for what went wrong, or empty.
std::string OwnWords(const std::vector<ReportedFailure>& failures, uint32_t rank) {
  for (const ReportedFailure& failure : failures) {
    if (failure.failure.from_rank() == static_cast<int32_t>(rank)) return failure.failure.text();
  }
  return "";
}

// The ranks whose end one headline tells, ascending: a lost node's, or those that could not be started for one reason,
// as a program that is missing here is often missing everywhere.
std::vector<uint32_t> RanksOfHeadline(const Roster& roster, uint32_t rank) {
  const v1::RankExit& exit = *roster.rank(rank).exit;
  if (exit.started() && !exit.lost()) return {rank};
  std::vector<uint32_t> alike;
  for (uint32_t other = 0; other < roster.rank_count(); ++other) {
    const auto& end = roster.rank(other).exit;
    if (!end.has_value() || end->lost() != exit.lost()) continue;
    const bool same = exit.lost() ? roster.rank(other).node == roster.rank(rank).node
                                  : !end->started() && end->error() == exit.error();
    if (same) alike.push_back(other);
  }
  return alike;
}

// Whether the ranks' latest calls are of more than one group.
bool CallsOfManyGroups(const Roster& roster) {
  std::optional<uint64_t> first;
  for (uint32_t rank = 0; rank < roster.rank_count(); ++rank) {
    const Roster::Rank& of = roster.rank(rank);
    const v1::CallState* const call = of.exit.has_value()    ? &of.exit->doing()
                                      : of.stays.has_value() ? &*of.stays
                                                             : nullptr;
    if (call == nullptr || !call->present()) continue;
    if (first.value_or(call->group()) != call->group()) return true;
    first = call->group();
  }
  return false;
}

std::string RankHeadline(const Roster& roster, const std::vector<ReportedFailure>& failures, uint32_t rank) {
  const v1::RankExit& exit = *roster.rank(rank).exit;
  const std::vector<uint32_t> alike = RanksOfHeadline(roster, rank);
  if (exit.lost()) return RankNames(alike) + " (" + roster.node_of(rank).name + ") " + DescribeEnd(exit);
  if (alike.size() > 1) return RankNames(alike) + " " + DescribeEnd(exit);
  std::string text = roster.Name(rank) + " " + DescribeFailure(exit);
  std::string last_line = LastLine(exit.last_words());
  if (last_line.empty() || !text.ends_with(last_line)) last_line.clear();
  text.resize(text.size() - last_line.size());
  const std::string own_words = OwnWords(failures, rank);
  if (!own_words.empty()) {
    text += ": " + own_words;
    if (own_words.find(exit.last_words()) != std::string::npos) last_line.clear();
  } else if (exit.doing().present() && !exit.doing().done()) {
    text += " while " + DescribeLastCall(exit, CallsOfManyGroups(roster));
  }
  return text + last_line;
}

// A rank that reports calls that differ, or are late, is not their cause.
int32_t CulpritOf(const v1::GroupFailure& failure) {
  return failure.blamed_rank() >= 0 || IsVerdict(failure) ? failure.blamed_rank() : failure.from_rank();
}

std::string FailureHeadline(const Roster& roster, const v1::GroupFailure& failure) {
  if (IsVerdict(failure) || failure.from_rank() < 0 ||
      failure.from_rank() >= static_cast<int32_t>(roster.rank_count())) {
    return failure.text();
  }
  return roster.Name(static_cast<uint32_t>(failure.from_rank())) + ": " + failure.text();
}

std::string DescribeOther(const Roster& roster, uint32_t rank, bool name_group) {
  const auto& exit = roster.rank(rank).exit;
  const std::string name = NameRank(rank, roster.Place(rank), 0) + ": ";
  if (!exit.has_value() && roster.rank(rank).stays.has_value()) {
    return name + DescribeCall(*roster.rank(rank).stays, name_group) + ", lives on and waits for the next epoch";
  }
  if (!exit.has_value()) return name + "unknown, its agent did not report its end in time";
  if (exit->lost() || !exit->started()) return name + DescribeEnd(*exit);
  std::string text = name + DescribeLastCall(*exit, name_group);
  if (exit->killed_by_us() && exit->error().empty()) {
    if (exit->signal() != SIGKILL) return text;
    if (!exit->asked_to_end()) return text + ", was killed without being asked";
    return text + (exit->was_stopped() ? ", was stopped (SIGSTOP), could not end when asked and was killed"
                                       : ", did not end when asked and was killed");
  }
  return text + ", " + DescribeEnd(*exit);
}

// All but those that the headline names, ascending.
void AddOthers(const Roster& roster, const std::vector<uint32_t>& told, v1::JobReport* report) {
  size_t listed = 0;
  const bool name_group = CallsOfManyGroups(roster);
  for (uint32_t rank = 0; rank < roster.rank_count(); ++rank) {
    if (std::binary_search(told.begin(), told.end(), rank)) continue;
    if (listed++ < kMaxOthersOneByOne) report->add_others(DescribeOther(roster, rank, name_group));
  }
  if (listed > kMaxOthersOneByOne) {
    report->set_others_left_out(static_cast<uint32_t>(listed - kMaxOthersOneByOne));
  }
}

// The culprit's are already the report's own.
void KeepFewLastLines(v1::JobReport* report) {
  int kept = 0;
  for (v1::RankExit& exit : *report->mutable_exits()) {
    if (exit.last_lines_size() > 0 && kept++ >= kMaxExitsWithLines) exit.clear_last_lines();
  }
}

void KeepPlacesOfSome(v1::JobReport* report) {
  int kept = 0;
  for (v1::RankExit& exit : *report->mutable_exits()) {
    const bool culprit = static_cast<int>(exit.rank()) == report->culprit_rank();
    if (exit.state().empty() || culprit || kept++ < kMaxExitsWithPlace) continue;
    exit.clear_frames();
    exit.clear_state();
  }
}

// Nobody failed. That is success unless ranks are missing or were ended all the same.
void ReportWithoutCause(const Roster& roster, v1::JobReport* report) {
  std::vector<uint32_t> staying;
  for (uint32_t rank = 0; rank < roster.rank_count(); ++rank) {
    if (!roster.rank(rank).exit.has_value() && roster.rank(rank).stays.has_value()) staying.push_back(rank);
  }
  if (!staying.empty()) {
    report->set_exit_code(1);
    report->set_headline(RankNames(staying) + " left the epoch to begin another; no rank had failed");
    AddOthers(roster, {}, report);
    return;
  }
  if (report->exits_size() < static_cast<int>(roster.rank_count())) {
    report->set_exit_code(1);
    report->set_headline("the job ended without word from some of its ranks");
    AddOthers(roster, {}, report);
    return;
  }
  for (const v1::RankExit& exit : report->exits()) {
    if (!exit.killed_by_us()) continue;
    report->set_exit_code(std::max(1, ExitCode(exit)));
    report->set_headline(roster.Name(exit.rank()) + " was ended by its agent, which gave no reason");
    AddOthers(roster, {}, report);
    return;
  }
}

}  // namespace

bool IsVerdict(const v1::GroupFailure& failure) {
  const auto code = static_cast<absl::StatusCode>(failure.code());
  return code == absl::StatusCode::kFailedPrecondition || code == absl::StatusCode::kDeadlineExceeded ||
         code == absl::StatusCode::kDataLoss;
}

v1::JobReport FindRootCause(const Roster& roster, const std::vector<ReportedFailure>& failures,
                            const std::optional<ReportedStop>& stop) {
  const Search search(roster, failures, stop);
  v1::JobReport report;
  report.set_culprit_rank(-1);
  for (uint32_t rank = 0; rank < roster.rank_count(); ++rank) {
    if (roster.rank(rank).exit.has_value()) *report.add_exits() = *roster.rank(rank).exit;
  }
  const std::optional<Candidate> cause = search.Find();
  if (!cause.has_value()) {
    ReportWithoutCause(roster, &report);
    return report;
  }
  // The culprit's status, else that of the first rank that failed.
  const auto earliest =
      std::min_element(search.failed().begin(), search.failed().end(),
                       [&roster](uint32_t a, uint32_t b) { return roster.rank(a).gone_at < roster.rank(b).gone_at; });
  report.set_exit_code(earliest == search.failed().end() ? 1 : ExitCode(*roster.rank(*earliest).exit));
  if (cause->rank.has_value()) {
    report.set_culprit_rank(static_cast<int>(*cause->rank));
    report.set_exit_code(ExitCode(*roster.rank(*cause->rank).exit));
    report.set_headline(RankHeadline(roster, failures, *cause->rank));
  } else if (cause->failure != nullptr) {
    const v1::GroupFailure& failure = cause->failure->failure;
    report.set_culprit_rank(CulpritOf(failure));
    report.set_headline(FailureHeadline(roster, failure));
  } else {
    report.set_exit_code(cause->stop->exit_code);
    report.set_headline(cause->stop->reason);
  }
  const int speaker = report.culprit_rank() >= 0  ? report.culprit_rank()
                      : cause->failure != nullptr ? static_cast<int>(*earliest)
                                                  : -1;
  if (speaker >= 0 && speaker < static_cast<int>(roster.rank_count())) {
    const auto& exit = roster.rank(static_cast<uint32_t>(speaker)).exit;
    if (exit.has_value()) *report.mutable_last_lines() = exit->last_lines();
    if (exit.has_value()) report.set_last_words(exit->last_words());
  }
  AddOthers(roster, cause->rank.has_value() ? RanksOfHeadline(roster, *cause->rank) : std::vector<uint32_t>(), &report);
  KeepFewLastLines(&report);
  KeepPlacesOfSome(&report);
  return report;
}

void KeepCauseAlone(v1::JobReport* report) {
  report->clear_last_lines();
  report->clear_others();
  report->clear_exits();
}

}  // namespace cohort::launcher
