// A rank of which a tape is written: its bootstrap, and beside it the tape.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <utility>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/bootstrap/taped.h"
#include "cohort/runtime/bootstrap/welcome.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/tape/tape.h"
#include "cohort/runtime/tape/tape_place.h"

namespace cohort::runtime {
namespace {

uint64_t NewTapeId() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32 | random()) | 1;
}

class RecordedBootstrap final : public Bootstrap {
 public:
  RecordedBootstrap(std::unique_ptr<Bootstrap> bootstrap, TapeOrder order)
      : bootstrap_(std::move(bootstrap)), order_(std::move(order)) {}

  absl::StatusOr<Joined> Join(Deadline deadline) override {
    COHORT_ASSIGN_OR_RETURN(Joined joined, bootstrap_->Join(deadline));
    const int rank = joined.identity.rank;
    const bool named =
        order_.ranks.empty() || std::find(order_.ranks.begin(), order_.ranks.end(), rank) != order_.ranks.end();
    if (named) Record(joined);
    return joined;
  }
  absl::Status Put(std::string_view key, std::string_view value, Deadline deadline) override {
    absl::Status status = bootstrap_->Put(key, value, deadline);
    if (!status.ok()) Note({.kind = TapeLookup::Kind::kStorePut, .key = std::string(key), .status = status});
    return status;
  }
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    absl::StatusOr<std::string> value = bootstrap_->Get(key, deadline);
    Note({.kind = TapeLookup::Kind::kStoreGet,
          .key = std::string(key),
          .status = value.status(),
          .found = value.ok(),
          .value = value.ok() ? *value : ""});
    return value;
  }
  absl::StatusOr<VariableResult> CallVariable(const VariableCall& call, Deadline deadline) override {
    absl::StatusOr<VariableResult> result = bootstrap_->CallVariable(call, deadline);
    TapeLookup lookup{.kind = TapeLookup::Kind::kVariable,
                      .call = static_cast<int>(call.kind),
                      .key = call.key,
                      .status = result.status()};
    if (result.ok()) {
      lookup.found = result->found;
      lookup.value = result->value;
      lookup.number = result->number;
    }
    Note(lookup);
    return result;
  }
  void Goodbye() override {
    bootstrap_->Goodbye();
    if (tape_ != nullptr) tape_->writer()->Finish();
  }

  void MayStay() override { bootstrap_->MayStay(); }
  bool Poll(BootstrapListener& listener) override { return bootstrap_->Poll(listener); }
  bool Look() override { return bootstrap_->Look(); }
  void ReportStall(uint64_t group, uint64_t epoch, uint64_t sequence, const RankSet& members, bool expired) override {
    bootstrap_->ReportStall(group, epoch, sequence, members, expired);
  }
  void ReportWait(uint64_t group, uint64_t epoch, const RankSet& members) override {
    bootstrap_->ReportWait(group, epoch, members);
  }
  void ReportGroupFailure(const GroupFailure& failure) override { bootstrap_->ReportGroupFailure(failure); }
  bool AskToBeKilled(const std::string& why) override { return bootstrap_->AskToBeKilled(why); }
  void AskForNotices() override { bootstrap_->AskForNotices(); }
  void ReportPreemptionStep(uint64_t step) override { bootstrap_->ReportPreemptionStep(step); }
  void ReportPreempted(uint64_t step) override { bootstrap_->ReportPreempted(step); }
  bool HasEpochs() const override { return bootstrap_->HasEpochs(); }
  absl::Status AwaitNextEpoch(Deadline deadline) override {
    tape_.reset();  // it is the ended epoch's
    return bootstrap_->AwaitNextEpoch(deadline);
  }
  std::unique_ptr<Bootstrap> NewOfThisKind() const override {
    std::unique_ptr<Bootstrap> next = bootstrap_->NewOfThisKind();
    return next == nullptr ? nullptr : BootstrapRecorded(std::move(next), order_);
  }

 private:
  void Record(const Joined& joined) {
    const Identity& identity = joined.identity;
    TapeHead head;
    head.version = COHORT_VERSION;
    head.id = NewTapeId();
    head.welcome = WriteWelcome(identity).SerializeAsString();
    head.rank = identity.rank;
    head.segment_epoch = joined.segment->epoch();
    head.environment = order_.environment;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    head.started = std::chrono::duration_cast<std::chrono::seconds>(now).count();
    head.keep_steps = order_.keep_steps;
    const TapePlace place{identity.rank, identity.epoch, 1 + ReopenedOf(joined.segment->epoch())};
    absl::StatusOr<std::unique_ptr<TapeWriter>> writer = TapeWriter::Create(order_.folder, TapeName(place), head);
    if (!writer.ok()) {
      std::fprintf(stderr, "cohort: rank %d: %s; the job goes on without this tape\n", identity.rank,
                   std::string(writer.status().message()).c_str());
      return;
    }
    tape_ = std::make_unique<Tape>(joined.segment.get(), *std::move(writer));
  }
  void Note(const TapeLookup& lookup) {
    if (tape_ != nullptr) tape_->writer()->AddLookup(lookup);
  }

  const std::unique_ptr<Bootstrap> bootstrap_;
  const TapeOrder order_;
  std::unique_ptr<Tape> tape_;  // null: this rank is not recorded
};

}  // namespace

std::unique_ptr<Bootstrap> BootstrapRecorded(std::unique_ptr<Bootstrap> bootstrap, TapeOrder order) {
  return std::make_unique<RecordedBootstrap>(std::move(bootstrap), std::move(order));
}

}  // namespace cohort::runtime
