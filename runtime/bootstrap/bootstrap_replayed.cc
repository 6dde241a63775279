// A rank that is replayed: alone, in the place that its tape says.
#include <atomic>
#include <utility>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/bootstrap/alone.h"
#include "cohort/runtime/bootstrap/taped.h"
#include "cohort/runtime/bootstrap/welcome.h"
#include "cohort/runtime/tape/replay_progress.h"
#include "cohort/runtime/tape/tape.h"
#include "cohort/runtime/tape/tape_place.h"

namespace cohort::runtime {
namespace {

// Runtimes of this process that have joined by a tape.
std::atomic<uint64_t> replayed_runtimes{0};

// The tape of the process' `number`th runtime, of which `first` is the first one's.
std::string TapeOfRuntime(const std::string& first, uint64_t number) {
  const size_t name_at = first.rfind('/') + 1;
  std::optional<TapePlace> place = ReadTapeName(first.substr(name_at));
  if (!place.has_value() || number == 1) return first;
  place->runtime += number - 1;
  return first.substr(0, name_at) + TapeName(*place);
}

class ReplayedBootstrap final : public BootstrapAlone {
 public:
  explicit ReplayedBootstrap(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<Joined> Join(Deadline deadline) override {
    (void)deadline;
    const uint64_t number = replayed_runtimes.fetch_add(1) + 1;
    COHORT_ASSIGN_OR_RETURN(std::unique_ptr<OpenTape> open, OpenTape::Open(TapeOfRuntime(path_, number)));
    const TapeHead& head = open->contents().head;
    v1::Welcome welcome;
    if (!welcome.ParseFromString(head.welcome)) return absl::DataLossError("the tape " + path_ + " has a damaged head");
    Joined joined;
    COHORT_ASSIGN_OR_RETURN(joined.identity, ReadWelcome(welcome));
    COHORT_RETURN_IF_ERROR(AddNodes(welcome.nodes(), &joined.identity));
    COHORT_RETURN_IF_ERROR(CheckNodes(joined.identity));
    const NodeInfo& node = joined.identity.nodes[static_cast<size_t>(joined.identity.node)];
    // It has one rank: nobody else would use it.
    COHORT_ASSIGN_OR_RETURN(
        joined.segment,
        MakeSegment(
            {.local_ranks = 1, .epoch = head.segment_epoch, .job_id = joined.identity.job_id, .node = node.name}));
    tape_ = std::make_unique<Tape>(joined.segment.get(), std::make_unique<TapePlayer>(std::move(open)));
    CheckAtExit(tape_->player()->progress());
    return joined;
  }
  absl::Status Put(std::string_view key, std::string_view value, Deadline deadline) override {
    (void)value, (void)deadline;
    const absl::StatusOr<TapeLookup> failed = tape_->player()->Answer(TapeLookup::Kind::kStorePut, 0, key);
    return failed.ok() ? failed->status : absl::OkStatus();  // only failures are recorded
  }
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    (void)deadline;
    COHORT_ASSIGN_OR_RETURN(const TapeLookup answer, tape_->player()->Answer(TapeLookup::Kind::kStoreGet, 0, key));
    COHORT_RETURN_IF_ERROR(answer.status);
    return answer.value;
  }
  absl::StatusOr<VariableResult> CallVariable(const VariableCall& call, Deadline deadline) override {
    (void)deadline;
    COHORT_ASSIGN_OR_RETURN(const TapeLookup answer, tape_->player()->Answer(TapeLookup::Kind::kVariable,
                                                                             static_cast<int>(call.kind), call.key));
    COHORT_RETURN_IF_ERROR(answer.status);
    return VariableResult{answer.found, answer.value, answer.number};
  }

 private:
  const std::string path_;
  std::unique_ptr<Tape> tape_;
};

}  // namespace

std::unique_ptr<Bootstrap> BootstrapFromTape(std::string path) {
  return std::make_unique<ReplayedBootstrap>(std::move(path));
}

}  // namespace cohort::runtime
