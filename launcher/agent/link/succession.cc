#include "cohort/launcher/agent/link/succession.h"

#include <optional>
#include <utility>

#include "cohort/launcher/control/lease.h"
#include "cohort/launcher/control/standby/agent_session.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {
namespace {

class NoSuccession : public Succession {
 public:
  std::chrono::milliseconds next_host_within() const override { return std::chrono::milliseconds(0); }
  bool Say(const v1::FromAgent&) override { return true; }
  std::vector<v1::FromAgent> Hear(const v1::ToAgent&) override { return {}; }
  void Leave() override {}
  void Resume(v1::NodeOffer*) override {}
  bool standing_by() override { return false; }
  void OnPage(const v1::LogPage&) override {}
  void AcknowledgeTo(RendezvousClient*) override {}
  std::unique_ptr<StandbyCopy> TakeCopy() override { return nullptr; }
};

class SuccessionWithStandbys : public Succession {
 public:
  explicit SuccessionWithStandbys(bool stands_by) : copy_(stands_by ? std::make_unique<StandbyCopy>() : nullptr) {}

  std::chrono::milliseconds next_host_within() const override { return kTakeOverTime; }
  bool Say(const v1::FromAgent& message) override { return session_.Say(message); }
  std::vector<v1::FromAgent> Hear(const v1::ToAgent& message) override { return session_.Hear(message); }
  void Leave() override { session_.Leave(); }
  void Resume(v1::NodeOffer* offer) override;
  bool standing_by() override;
  void OnPage(const v1::LogPage& page) override;
  void AcknowledgeTo(RendezvousClient* client) override;
  std::unique_ptr<StandbyCopy> TakeCopy() override;

 private:
  AgentSession session_;
  runtime::Mutex mutex_;
  std::unique_ptr<StandbyCopy> copy_ COHORT_GUARDED_BY(mutex_);
  RendezvousClient* acknowledges_to_ COHORT_GUARDED_BY(mutex_) = nullptr;
  std::optional<v1::FromAgent> early_ack_ COHORT_GUARDED_BY(mutex_);
};

void SuccessionWithStandbys::Resume(v1::NodeOffer* offer) {
  offer->mutable_resume()->set_taken(session_.heard());
  const runtime::MutexLock lock(mutex_);
  if (copy_ != nullptr) offer->mutable_resume()->set_applied(copy_->applied());
}

bool SuccessionWithStandbys::standing_by() {
  const runtime::MutexLock lock(mutex_);
  return copy_ != nullptr;
}

void SuccessionWithStandbys::OnPage(const v1::LogPage& page) {
  const runtime::MutexLock lock(mutex_);
  if (copy_ == nullptr) return;
  const std::optional<v1::LogAck> ack = copy_->OnPage(page, std::chrono::steady_clock::now());
  if (!ack.has_value()) return;
  v1::FromAgent message;
  *message.mutable_logged() = *ack;
  if (acknowledges_to_ != nullptr) {
    (void)acknowledges_to_->Send(message);
  } else {
    early_ack_ = std::move(message);
  }
}

void SuccessionWithStandbys::AcknowledgeTo(RendezvousClient* client) {
  const runtime::MutexLock lock(mutex_);
  acknowledges_to_ = client;
  if (client != nullptr && early_ack_.has_value()) (void)client->Send(*early_ack_);
  early_ack_.reset();
}

std::unique_ptr<StandbyCopy> SuccessionWithStandbys::TakeCopy() {
  const runtime::MutexLock lock(mutex_);
  return std::move(copy_);
}

}  // namespace

std::unique_ptr<Succession> Succession::None() { return std::make_unique<NoSuccession>(); }

std::unique_ptr<Succession> Succession::Of(const v1::NodeStart& start) {
  if (start.standbys() == 0) return None();
  return std::make_unique<SuccessionWithStandbys>(start.node() > 0 && start.node() <= start.standbys());
}

}  // namespace cohort::launcher
