#include "cohort/launcher/agent/mpi/mpi_service.h"

#include <algorithm>
#include <utility>

#include "cohort/launcher/agent/rank/store_relay.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
bool MpiService::Serves(const v1::JobSpec& job) { return job.serves_pmi1() || job.pmix() != v1::JobSpec::PMIX_NONE; }

MpiService::MpiService(EventLoop* loop, const v1::Assignment& assignment, Callbacks callbacks, const MpiDelays& delays,
                       std::optional<Spawned> spawned)
    : loop_(loop),
      assignment_(assignment),
      callbacks_(std::move(callbacks)),
      spawned_(std::move(spawned)),
      store_(loop, std::string(StoreRelay::kOwnNames) + std::to_string(assignment.epoch()) + "/",
             {.ask = callbacks_.ask,
              .on_refused = [this](const std::string& why) { GetStuck(0, "its MPI values were refused: " + why); }}),
      delays_(delays) {}

absl::Status MpiService::Start(const PmixService::Starter& start_pmix) {
  const auto on_stuck = [this](int rank, const std::string& why) { GetStuck(rank, why); };
  const auto on_spawn = [this](MpiWay way) {
    return [this, way](int rank, const SpawnRequest& request, SpawnDone done) {
      callbacks_.on_spawn(rank, way, request, std::move(done));
    };
  };
  if (assignment_.job().serves_pmi1()) {
    std::optional<Pmi1Service::Spawned> spawned;
    if (spawned_) spawned.emplace(Pmi1Service::Spawned{spawned_->values});
    pmi1_ = std::make_unique<Pmi1Service>(
        loop_, assignment_, &store(),
        Pmi1Service::Callbacks{callbacks_.on_notice, callbacks_.on_abort, on_stuck, on_spawn(MpiWay::kPmi1)},
        delays_.wait_is_told, std::move(spawned));
    COHORT_RETURN_IF_ERROR(pmi1_->Start());
  }
  if (assignment_.job().pmix() == v1::JobSpec::PMIX_NONE) return absl::OkStatus();
  std::optional<PmixService::Spawned> spawned;
  if (spawned_) spawned.emplace(PmixService::Spawned{spawned_->parent, spawned_->parent_rank});
  pmix_ = std::make_unique<PmixService>(
      loop_, assignment_, &store(),
      PmixService::Callbacks{callbacks_.on_notice, callbacks_.on_abort, on_stuck, on_spawn(MpiWay::kPmix)},
      delays_.wait_is_told, std::move(spawned));
  const absl::Status started = pmix_->Start(CpusToShare(), start_pmix);
  if (started.ok()) return started;
  pmix_.reset();
  if (assignment_.job().pmix() == v1::JobSpec::PMIX_REQUIRED) return started;
  if (assignment_.world_size() > 1) NoteAbsence(TextOf(started));
  return absl::OkStatus();
}

// The first node says it for all. Where others have PMIx, their ranks of Open MPI learn why they can't go on.
void MpiService::NoteAbsence(const std::string& why) {
  const NodePlaces places = PlacesOf(assignment_);
  if (places.nodes.size() > 1) {
    LeftNews(&store(), "pmix").Tell("the ranks of " + places.nodes[places.own].name + ", which has no PMIx: " + why);
  }
  if (places.own != 0) return;
  absence_ = "if the program uses Open MPI, each rank is alone in it, as rank 0 of 1: " + why;
  absence_timer_ = loop_->After(delays_.absence_is_told, [this] { TellOfAbsence(); });
}

void MpiService::TellOfAbsence() {
  const std::string line = std::exchange(absence_, "");
  for (int i = 0; pmi1_ != nullptr && i < assignment_.placement().ranks_size(); ++i) {
    if (pmi1_->UseOf(i) != MpiUse::kNever) return;  // it is MPICH
  }
  if (!line.empty()) callbacks_.on_notice(line);
}

std::vector<std::string> MpiService::EnvironmentOf(int local_rank) {
  std::vector<std::string> environment;
  if (pmi1_ != nullptr) environment = pmi1_->EnvironmentOf(local_rank);
  if (pmix_ == nullptr) return environment;
  for (std::string& variable : pmix_->EnvironmentOf(local_rank)) environment.push_back(std::move(variable));
  // MPICH 5 refuses to choose where it finds both.
  if (pmi1_ != nullptr) environment.push_back("MPIR_CVAR_PMI_VERSION=1");
  return environment;
}

void MpiService::CloseInherited() {
  if (pmi1_ != nullptr) pmi1_->CloseInherited();
}

void MpiService::OnEnded(int local_rank, bool in_order) {
  if (pmi1_ != nullptr) pmi1_->OnEnded(local_rank);
  if (pmix_ != nullptr) pmix_->OnEnded(local_rank);
  if (in_order) ended_in_order_.emplace_back(local_rank, EventLoop::Clock::now());
  if (in_order && failed_at_) TellOfLeftSoon();  // the other's failure may be known first
  TellOfAbsence();
}

// Open MPI 5 aborts a rank that misses another at once, and so may any library whose connection breaks.
void MpiService::OnFailure() {
  if (!failed_at_) failed_at_ = EventLoop::Clock::now();
  TellOfLeftSoon();
}

// Behind what is posted: until then PMIx may not know whether a rank has left, and the failure itself is to be told
// first.
void MpiService::TellOfLeftSoon() {
  loop_->Post([this, lives = lives_] {
    if (*lives) TellOfLeft();
  });
}

void MpiService::TellOfLeft() {
  const auto left = std::find_if(ended_in_order_.begin(), ended_in_order_.end(), [&](const auto& ended) {
    const auto between = std::chrono::abs(ended.second - *failed_at_);
    return between < delays_.cause_may_show && UseOf(ended.first) == MpiUse::kLeft;
  });
  if (left == ended_in_order_.end() || std::exchange(left_is_told_, true)) return;
  const NodePlaces places = PlacesOf(assignment_);
  const auto rank = static_cast<int>(assignment_.placement().ranks(left->first).rank());
  callbacks_.on_left(RankHasLeft(rank, places.nodes.size() > 1 ? places.nodes[places.own].name : ""));
}

MpiUse MpiService::UseOf(int local_rank) const {
  const MpiUse by_pmi1 = pmi1_ != nullptr ? pmi1_->UseOf(local_rank) : MpiUse::kNever;
  const MpiUse by_pmix = pmix_ != nullptr ? pmix_->UseOf(local_rank) : MpiUse::kNever;
  return std::max(by_pmi1, by_pmix);
}

// The rank may have left MPI when it is told: then another one that is in MPI, or nobody.
void MpiService::GetStuck(int local_rank, const std::string& why) {
  if (stuck_timer_ != 0) return;
  stuck_timer_ = loop_->After(delays_.cause_may_show, [this, local_rank, why] {
    stuck_timer_ = 0;
    const int ranks = assignment_.placement().ranks_size();
    for (int i = 0; i < ranks; ++i) {
      const int rank = (local_rank + i) % ranks;
      if (UseOf(rank) == MpiUse::kInside) return callbacks_.on_stuck(rank, why);
    }
  });
}

}  // namespace cohort::launcher
