// The inside of Rendezvous: see rendezvous.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/launcher/control/call_comparison.h"
#include "cohort/launcher/control/inspection.h"
#include "cohort/launcher/control/key_value_store.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/control/restart.h"
#include "cohort/launcher/control/root_cause.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/launcher/control/step_agreement.h"

namespace cohort::launcher {

class Rendezvous::Machine {
 public:
  Machine(v1::JobPlan plan, TimePoint now);

  std::vector<Action> Handle(Event event, TimePoint now);
  std::vector<Action> Tick(TimePoint now);
  TimePoint NextTick() const { return promised_; }
  bool finished() const { return phase_ == Phase::kFinished; }

 private:
  enum class Phase { kGathering, kRunning, kStopping, kPausing, kFinished };

  // Time. All members hold the machine's own time, which stands still while the process is stopped.
  void Begin(TimePoint now);
  std::vector<Action> End();
  TimePoint NextDue() const;
  void LetTimePass();
  // What the agents have sent may not have been read yet.
  void HearEverybody();
  void FindSilentNodes();
  void LoseLateNodes();

  // What agents say.
  void On(const Received& event);
  void On(const Disconnected& event);
  void On(const StopRequested& event);
  void On(const NoticeGiven& event);
  void On(const AgentEnded& event);
  void On(const TakenOver&) { HearEverybody(); }
  void On(const StandbysNoted&) {}
  void OnSpeechOfUnknown(const Received& event);
  void AnswerBeat(const Received& event);
  void OnJoin(ConnectionId from, const v1::NodeOffer& offer);
  void OnMessage(ConnectionId from, uint32_t node, const v1::FromAgent& message);
  void OnStarted(ConnectionId from, uint32_t node, const v1::RanksStarted& started);
  void OnExit(ConnectionId from, uint32_t node, const v1::RankExit& exit);
  void OnStays(ConnectionId from, uint32_t node, const v1::RankStays& stays);
  void OnDone(uint32_t node, const v1::NodeDone& done);
  void OnPut(ConnectionId from, const v1::PutRequest& put);
  void OnGet(ConnectionId from, const v1::GetRequest& get);
  void OnStall(const v1::StallReport& stall);
  void OnGroupFailure(uint32_t node, const v1::GroupFailure& failure);

  // Membership.
  struct Spare {
    uint32_t agent = 0;
    ConnectionId connection = 0;
    Roster::Node node;  // what it would be in the job
  };
  std::string WhyNotTaken(const v1::NodeOffer& offer) const;
  std::vector<Spare>::iterator FindSpare(ConnectionId connection);
  void LoseSpare(ConnectionId connection, const std::string& how);
  void GiveUpAgent(uint32_t agent, const std::string& text);
  // Spares that have yet to join, and may.
  uint32_t SparesToCome() const;
  // Why the job can't go on without the nodes that are lost, with so many spares in their place; or empty.
  std::string LackingWith(size_t spares) const;
  std::string Lacking() const { return LackingWith(spares_.size() + SparesToCome()); }
  // Ends a job that pauses and can't go on. False: it does.
  bool FinishIfLacking(const std::string& text);
  // When no rank of a lost node can live any more.
  TimePoint FencedUntil() const;
  // When a job that pauses can go on: no rank of a lost node can live any more, and the spares that it needs are there
  // or will not come.
  TimePoint RestartDue() const;
  // Fills the lost nodes' places, or closes the ranks.
  void Reseat();

  // The course of an epoch, and the end.
  // The present one, or while the job pauses the next.
  uint64_t epoch() const { return 1 + restarts_.restarts(); }
  void AssignAll();
  bool IsOn(uint32_t node, uint32_t rank) const;
  void RecordExit(const v1::RankExit& exit, TimePoint gone_at);
  void AnnounceLoss(const std::vector<uint32_t>& ranks, const std::string& text);
  void LoseNode(uint32_t node, const std::string& how, TimePoint gone_at);
  void LoseRanksOf(uint32_t node, const std::string& text, TimePoint gone_at);
  void StopAll(const std::string& reason, int exit_code, std::chrono::milliseconds grace, bool restarting = false);
  // What ranks that are told to end now have until they are killed.
  std::chrono::milliseconds GraceLeft() const;
  void FinishIfDone();
  void Pause(v1::JobReport report, const RestartPolicy::Decision& decision);
  void BeginNextEpoch();
  void FinishUnstarted(const std::string& headline, int exit_code);
  void Finish(v1::JobReport report);

  // Preemption (preemption.cc).
  // A scheduler's signal; `only`: the agent that it came to.
  void OnNotice(int signal, std::optional<ConnectionId> only);
  void OnPreemptionWish();
  void OnPreemptionStep(uint32_t node, const v1::NodeStep& step);
  void OnPreempted(const v1::RankPreempted& preempted);
  // A node whose ranks have gone has nobody to ask.
  void AnswerFor(uint32_t node);
  void BeginPreemption(int signal);
  // True where the ranks are told and get their grace; then the stop is due.
  bool PreemptBeforeStopping(const StopRequested& request);
  void ConcludePreemption();
  void EndPreemptionIfDue();
  // Nobody failed, and a rank has stopped as agreed: that is how the job ended.
  void TellIfPreempted(v1::JobReport* report) const;

  // Stalled operations.
  void StartInspections();
  // With `late_ones_too` also the rounds whose time is up.
  void ConcludeInspections(bool late_ones_too);
  std::vector<InspectedMember> MembersOf(const Inspections::Round& round) const;
  void AnnounceFailure(v1::GroupFailure failure, std::vector<uint32_t> members);
  std::vector<uint32_t> TellMembers(const v1::GroupFailure& failure, const std::vector<uint32_t>& members);
  void ForgetOldStalls();
  void AskAboutStallsWith(uint32_t rank);

  // Sending.
  void SendTo(ConnectionId to, v1::ToAgent message);
  void Broadcast(v1::ToAgent message);
  void MarkTold(uint32_t node) { roster_.node(node).latest_told = now_; }
  void Refuse(ConnectionId connection, const std::string& why);
  void Violate(ConnectionId from, uint32_t node, const std::string& what);

  Phase phase_ = Phase::kGathering;
  Roster roster_;
  KeyValueStore store_;
  Inspections inspections_;
  struct Stall {
    uint64_t sequence = 0;
    std::vector<uint32_t> members;  // ascending
    TimePoint at;
  };
  std::map<std::pair<uint64_t, uint64_t>, Stall> stalls_;  // the latest report, by group and epoch
  std::unordered_map<ConnectionId, uint32_t> node_of_;
  std::vector<std::optional<ConnectionId>> connection_of_;  // by node
  const uint32_t first_spare_;                              // agents from this one on are spares
  std::vector<Spare> spares_;                               // idle, in the order of their coming
  std::set<uint32_t> joined_spares_;
  std::set<uint32_t> ended_agents_;  // of which nothing lives

  std::vector<ReportedFailure> failures_;
  std::set<std::pair<uint64_t, uint64_t>> failed_groups_;  // group, epoch
  std::optional<ReportedStop> stop_;
  RestartPolicy restarts_;
  TimePoint epoch_began_;

  bool wishes_ = false;                         // a rank has asked for notices of a preemption, in whatever epoch
  int notice_ = 0;                              // the latest that ranks were told of; survives epochs
  std::optional<StepAgreement> agreement_;      // since the notice, of this epoch
  std::optional<uint64_t> preempted_at_;        // a rank has stopped before this step, as agreed
  std::optional<ReportedStop> preempted_stop_;  // what follows a notice that is an order

  std::chrono::nanoseconds paused_{0};  // how far the machine's time is behind the caller's
  TimePoint now_;
  TimePoint promised_;   // the caller's time by which we are to be called again
  TimePoint next_look_;  // for silent nodes
  TimePoint join_deadline_;
  std::optional<TimePoint> stop_due_;        // after a failure: when Stop is sent
  std::optional<TimePoint> end_deadline_;    // after Stop: when we no longer wait for agents
  std::optional<TimePoint> restart_due_;     // while pausing
  std::optional<TimePoint> preemption_due_;  // when what was ordered with a notice is carried out
  std::vector<Action> actions_;
};

}  // namespace cohort::launcher
