#include "cohort/launcher/agent/mpi/mpi_service.h"

#include <utility>

#include "cohort/launcher/machine/cpus.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
bool MpiService::Serves(const v1::JobSpec& job) { return job.serves_pmi1() || job.pmix() != v1::JobSpec::PMIX_NONE; }

MpiService::MpiService(EventLoop* loop, const v1::Assignment& assignment, Callbacks callbacks)
    : loop_(loop),
      assignment_(assignment),
      callbacks_(std::move(callbacks)),
      store_(loop, ".mpi/" + std::to_string(assignment.epoch()) + "/",
             {.ask = callbacks_.ask,
              .on_refused = [this](const std::string& why) { GetStuck(0, "its MPI values were refused: " + why); }}) {}

absl::Status MpiService::Start() {
  const auto on_stuck = [this](int rank, const std::string& why) { GetStuck(rank, why); };
  if (assignment_.job().serves_pmi1()) {
    pmi1_ = std::make_unique<Pmi1Service>(loop_, assignment_, &store_,
                                          Pmi1Service::Callbacks{callbacks_.on_notice, callbacks_.on_abort, on_stuck});
    COHORT_RETURN_IF_ERROR(pmi1_->Start());
  }
  if (assignment_.job().pmix() == v1::JobSpec::PMIX_NONE) return absl::OkStatus();
  pmix_ = std::make_unique<PmixService>(loop_, assignment_, &store_,
                                        PmixService::Callbacks{callbacks_.on_notice, callbacks_.on_abort, on_stuck});
  const absl::Status started = pmix_->Start(CpusToShare());
  if (started.ok()) return started;
  pmix_.reset();
  return assignment_.job().pmix() == v1::JobSpec::PMIX_REQUIRED ? started : absl::OkStatus();
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

void MpiService::OnEnded(int local_rank) {
  if (pmix_ != nullptr) pmix_->OnEnded(local_rank);
}

bool MpiService::uses_mpi(int local_rank) const {
  return (pmi1_ != nullptr && pmi1_->uses_mpi(local_rank)) || (pmix_ != nullptr && pmix_->uses_mpi(local_rank));
}

void MpiService::GetStuck(int local_rank, const std::string& why) {
  if (stuck_timer_ != 0) return;
  stuck_timer_ = loop_->After(kCauseMayShow, [this, local_rank, why] { callbacks_.on_stuck(local_rank, why); });
}

}  // namespace cohort::launcher
