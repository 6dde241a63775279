#include "cohort/comm/group/shrink.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm {
namespace {

using runtime::Deadline;

constexpr uint64_t kShrinkTag = 5;
// How long the first look into the store waits for a key, which answers as soon as it is there; then news are looked
// at. Later looks take longer: as many ranks as there are may wait for one that saves a checkpoint.
constexpr auto kFirstLook = std::chrono::milliseconds(20);
constexpr auto kLongestLook = std::chrono::milliseconds(320);
constexpr auto kOverLook = std::chrono::milliseconds(1);
// How long the news of a death may come after the failure that it caused.
constexpr auto kNewsDelay = std::chrono::seconds(5);
// How long a proposal may take before the job is asked about its proposer, and then from one question to the next.
constexpr auto kFirstQuestion = std::chrono::milliseconds(200);
constexpr auto kNextQuestion = std::chrono::seconds(1);  // doubled each time
constexpr auto kLongestBetweenQuestions = std::chrono::seconds(8);
constexpr uint64_t kWaitTag = 6;
static_assert(runtime::kShrinkCall >= kCollectiveKinds);

std::string RoundKey(uint64_t group, uint64_t round) {
  char key[96];
  std::snprintf(key, sizeof key, "cohort/shrink/%016llx/%llu/", static_cast<unsigned long long>(group),
                static_cast<unsigned long long>(round));
  return key;
}

std::string KeyOf(uint64_t group, uint64_t round, int proposer) {
  return RoundKey(group, round) + std::to_string(proposer);
}

// There from when a member's time was over before the survivors had met in this round. Who comes later finds the next
// round here; the failure of the round's group itself is kept for some time only.
std::string OverKey(uint64_t group, uint64_t round) { return RoundKey(group, round) + "over"; }

// The dead members, as decimal world ranks with a space after each.
std::string Encode(const std::vector<int>& dead) {
  std::string text = "dead: ";
  for (const int rank : dead) text += std::to_string(rank) + " ";
  return text;
}

// The members that a proposal leaves; nothing where it is none.
std::optional<std::vector<int>> Survivors(const std::vector<int>& members, const std::string& proposal) {
  constexpr std::string_view kStart = "dead: ";
  if (proposal.compare(0, kStart.size(), kStart) != 0) return std::nullopt;
  std::vector<int> dead;
  int64_t number = -1;
  for (const char c : proposal.substr(kStart.size())) {
    if (c >= '0' && c <= '9' && number < (int64_t{1} << 30)) {
      number = std::max<int64_t>(number, 0) * 10 + (c - '0');
    } else if (c == ' ' && number >= 0) {
      dead.push_back(static_cast<int>(number));
      number = -1;
    } else {
      return std::nullopt;
    }
  }
  std::vector<int> left;
  for (const int member : members) {
    if (std::find(dead.begin(), dead.end(), member) == dead.end()) left.push_back(member);
  }
  return left;
}

void HearNews(runtime::Runtime& runtime) {
  runtime::EngineLock lock(runtime.engine());
  runtime.engine().Poll();
}

std::vector<int> DeadOf(const std::vector<int>& members, runtime::Runtime& runtime) {
  std::vector<int> dead;
  for (const int member : members) {
    if (!runtime.rank_status(member).ok()) dead.push_back(member);
  }
  return dead;
}

// This rank's wait for a proposal: a call that its black box shows, and that the job is asked about, as about any other
// that stands still, since a proposer that ended in order is in no news of deaths and will never call. Its number is
// of the caller and the proposer alone, so that nobody else is told of the answer, or found absent.
class ProposalWait final : public runtime::MembershipListener {
 public:
  ProposalWait(Group& group, int proposer, const std::source_location& site)
      : runtime_(group.runtime()), members_{.ranks = {group.runtime().rank(), proposer}} {
    const GroupContext& context = group.context();
    runtime::CallRecord record;
    record.signature.group =
        GroupId(context.id, kWaitTag, group.derived().shrink_round().number, members_.ranks, context.epoch);
    record.signature.sequence = 1;
    record.signature.epoch = static_cast<uint32_t>(context.epoch);
    record.signature.kind = runtime::kShrinkCall;
    record.group_rank = context.rank;
    record.group_size = context.size;
    id_ = record.signature.group;
    epoch_ = context.epoch;
    {
      runtime::EngineLock lock(runtime_.engine());
      group.recorder().NameSite(site, &record);
      ticket_ = runtime_.segment().black_box().Start(record);
    }
    runtime_.AddListener(this);
  }
  ~ProposalWait() override {
    runtime_.RemoveListener(this);
    runtime::EngineLock lock(runtime_.engine());
    runtime_.segment().black_box().Finish(ticket_,
                                          status_.ok() ? runtime::CallState::kDone : runtime::CallState::kFailed);
  }
  ProposalWait(const ProposalWait&) = delete;
  ProposalWait& operator=(const ProposalWait&) = delete;

  void OnRanksLost(const std::vector<int>& /*ranks*/, const std::string& /*text*/) override {}
  void OnGroupFailure(const runtime::GroupFailure& failure) override {
    if (failure.group == id_ && failure.epoch == epoch_) status_ = failure.status;
  }

  // Why there will be no proposal, as far as the job knows; OK as long as there may be one.
  absl::Status Ask() {
    if (next_.passed()) {
      next_ = Deadline::After(pause_);
      pause_ = std::min(2 * pause_, kLongestBetweenQuestions);
      runtime_.ReportStall(id_, 1, members_, false);
    }
    HearNews(runtime_);
    runtime::EngineLock lock(runtime_.engine());
    return status_;
  }

 private:
  runtime::Runtime& runtime_;
  const runtime::RankSet members_;
  uint64_t id_ = 0;
  uint64_t epoch_ = 0;
  uint64_t ticket_ = 0;
  Deadline next_ = Deadline::After(kFirstQuestion);
  std::chrono::seconds pause_ = kNextQuestion;
  absl::Status status_;  // by the engine's owner
};

// Returns what `proposer` proposed; nothing when it died before.
absl::StatusOr<std::optional<std::string>> ProposalOf(Group& group, int proposer, const std::string& key,
                                                      const std::source_location& site, Deadline deadline) {
  runtime::Runtime& runtime = group.runtime();
  ProposalWait wait(group, proposer, site);
  for (auto look = kFirstLook;; look = std::min(2 * look, kLongestLook)) {
    // Both asked before the look: what the dead and the ended have not left by now they never will. Only an answer
    // counts: were the dead rank's proposal taken for missing where the agent is merely slow, two survivors could end
    // in different groups.
    const absl::Status ended = wait.Ask();
    const bool dead = !runtime.rank_status(proposer).ok();
    absl::StatusOr<std::string> found = runtime.Get(key, Earlier(deadline, Deadline::After(look)));
    if (found.ok()) return std::optional(*std::move(found));
    const bool none = absl::IsNotFound(found.status());
    if (!none && !absl::IsDeadlineExceeded(found.status())) return found.status();
    if (none && dead) return std::optional<std::string>();
    if (none && !ended.ok()) {
      return absl::Status(ended.code(), "shrink waits for rank " + std::to_string(proposer) +
                                            " in vain: " + std::string(ended.message()) +
                                            "; a rank that ended in order stays a member: let ranks end together");
    }
    if (deadline.passed()) {
      if (!none) return absl::DeadlineExceededError("shrink: " + std::string(found.status().message()));
      return absl::DeadlineExceededError("rank " + std::to_string(proposer) +
                                         " lives, as far as is known here, and has not called shrink");
    }
  }
}

// An attempt that ends for want of time leaves the round as it is: a late member enters the same one, and meets those
// who try again. The store's keys are written once, so a proposal stands.
absl::StatusOr<std::vector<int>> AgreeOnMembers(Group& group, const std::source_location& site, Deadline deadline) {
  runtime::Runtime& runtime = group.runtime();
  const std::vector<int>& members = group.context().members;
  for (const int proposer : members) {
    DerivedGroups::ShrinkRound& round = group.derived().shrink_round();
    const std::string key = KeyOf(group.context().id, round.number, proposer);
    std::optional<std::string> proposal;
    if (proposer == runtime.rank()) {
      HearNews(runtime);
      if (round.proposal.empty()) round.proposal = Encode(DeadOf(members, runtime));
      COHORT_RETURN_IF_ERROR(runtime.Put(key, round.proposal, deadline));
      proposal = round.proposal;
    } else {
      COHORT_ASSIGN_OR_RETURN(proposal, ProposalOf(group, proposer, key, site, deadline));
    }
    if (!proposal.has_value()) continue;
    std::optional<std::vector<int>> left = Survivors(members, *proposal);
    if (!left.has_value()) {
      return absl::InternalError("shrink: the job's store holds \"" + *proposal + "\" under " + key +
                                 ", which no member of the group wrote");
    }
    if (std::find(left->begin(), left->end(), runtime.rank()) == left->end()) {
      return absl::UnavailableError("shrink: the others take rank " + std::to_string(runtime.rank()) +
                                    ", the caller, for dead");
    }
    return *std::move(left);
  }
  return absl::InternalError("shrink: the caller is no member of its group");  // it stops the loop above
}

// True once a member is known to be dead; waits for the news that a failure may have run ahead of.
bool LostAMember(Group& group, Deadline deadline) {
  runtime::Runtime& runtime = group.runtime();
  const Deadline patience = Earlier(deadline, Deadline::After(kNewsDelay));
  return runtime.engine().DriveUntil([&] { return !DeadOf(group.context().members, runtime).empty(); }, patience);
}

absl::Status Meet(Group& group, const std::source_location& site, Deadline deadline) {
  CallArguments barrier;
  barrier.site = site;
  CallOptions options;
  options.timeout = std::max<std::chrono::nanoseconds>(deadline.left(), std::chrono::milliseconds(1));
  return group.Submit(barrier, options).Wait();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> ShrinkGroup(Group& group, Deadline deadline, const std::source_location& site) {
  if (group.InChild()) return group.WhyNotInChild();
  std::unique_ptr<Group> previous;  // a group that lost a member before it was handed out
  Group* parent = &group;
  while (true) {
    COHORT_ASSIGN_OR_RETURN(std::vector<int> members, AgreeOnMembers(*parent, site, deadline));
    const GroupContext& context = parent->context();
    const uint64_t round = parent->derived().shrink_round().number;
    const std::string over = OverKey(context.id, round);
    parent->derived().shrink_round() = {.number = round + 1, .proposal = ""};
    if (context.runtime->Get(over, Deadline::After(kOverLook)).ok()) continue;
    const uint64_t id = GroupId(context.id, kShrinkTag, round, members, context.epoch);
    auto child = std::make_unique<Group>(*parent, std::move(members), id, /*fails_with=*/std::vector<int>());
    child->SetShrunkFrom(context);
    const absl::Status met = Meet(*child, site, deadline);
    if (met.ok()) {
      group.runtime().NoteReportedFailure(group.status());  // dealt with
      return child;
    }
    if (absl::IsDeadlineExceeded(met)) {
      // Others may have put it already, and an agent that does not answer must not hold up what is late as it is.
      (void)context.runtime->Put(over, "over", Deadline::After(kLongestLook));
      if (!deadline.passed()) continue;  // another member's time was over: it tries again in the next round, if at all
    }
    if (!absl::IsUnavailable(met)) {
      return absl::Status(met.code(), "shrink: the survivors did not meet: " + std::string(met.message()));
    }
    if (!LostAMember(*child, deadline)) {
      return absl::UnavailableError("shrink: the survivors did not meet: " + std::string(met.message()) +
                                    "; no member is known to be dead. A rank that ended in order stays a member, which "
                                    "will never call: let ranks end together. Without dlaunch, whose agents know, the "
                                    "death of a rank on another host can't be told: end the job and start it again");
    }
    previous = std::move(child);
    parent = previous.get();
  }
}

}  // namespace cohort::comm
