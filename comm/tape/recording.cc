#include "cohort/comm/tape/recording.h"

#include <atomic>
#include <cstdio>
#include <utility>
#include <vector>

#include "cohort/comm/provider/state_pool.h"
#include "cohort/comm/tape/call_memory.h"
#include "cohort/comm/tape/provider_around.h"

namespace cohort::comm {
namespace {

// A call whose result is awaited for the tape.
struct RecordedCall {
  uint64_t number = 0;  // on the tape
  CollectiveRequest request = {};
  std::shared_ptr<BlockTable> blocks = nullptr;  // what request.blocks points to
  void* out = nullptr;
};

// Puts results on the tape.
class ResultTape {
 public:
  ResultTape(const GroupContext& group, runtime::TapeWriter& tape) : group_(group), tape_(tape) {}

  void End(const RecordedCall& call) {
    ReceivedBy(group_, call.request, call.out, &written_);
    pieces_.clear();
    for (const WrittenPiece& piece : written_) pieces_.push_back({piece.data, piece.bytes});
    tape_.End(call.number, pieces_);
  }

 private:
  const GroupContext& group_;
  runtime::TapeWriter& tape_;
  std::vector<WrittenPiece> written_;
  std::vector<runtime::MemoryPiece> pieces_;
};

// The Work of a call that was not done at once.
class RecordedState final : public PooledState<RecordedState>, private runtime::WorkListener {
 public:
  explicit RecordedState(StatePool<RecordedState>* pool) : PooledState(pool), WorkListener(/*makes_calls=*/false) {}

  void Await(ResultTape* results, const RecordedCall& call, uint64_t ticket, runtime::Work work) {
    results_ = results;
    call_ = call;
    ticket_ = ticket;
    work.Notify(this);
  }
  runtime::AwaitedCalls awaited() const { return {ticket_, ticket_}; }

 private:
  void OnDone(const absl::Status& status) override {
    if (status.ok()) results_->End(call_);
    call_.blocks.reset();
    CompleteAndDrop(status);
  }

  ResultTape* results_ = nullptr;
  RecordedCall call_;
  uint64_t ticket_ = 0;
};

void NoteCuda(int rank) {
  static std::atomic<bool> noted{false};
  if (noted.exchange(true)) return;
  std::fprintf(stderr, "cohort: rank %d: a tape holds results in host memory only: calls on CUDA memory are left out\n",
               rank);
}

class RecordingProvider final : public ProviderAround {
 public:
  RecordingProvider(const GroupContext& group, runtime::TapeWriter& tape, uint32_t group_number,
                    std::unique_ptr<Provider> real)
      : ProviderAround(std::move(real)),
        group_(group),
        tape_(tape),
        group_number_(group_number),
        results_(group, tape),
        pool_(&group.runtime->engine(), group.source) {}
  ~RecordingProvider() override { EndReal(); }

  void Start(PreparedCall& call, const void* in, void* out) override {
    // Before the call may write over it.
    if (call.request.memory == MemoryKind::kHost) input_ = HashOfInput(group_, call, in, &pieces_);
    real().Start(call, in, out);
  }
  runtime::Work Run(PreparedCall& call) override {
    if (call.request.memory != MemoryKind::kHost) {
      NoteCuda(group_.members[static_cast<size_t>(group_.rank)]);
      return real().Run(call);
    }
    // All that is needed of `call` later: it may be repeated before the provider returns.
    RecordedCall recorded = Begin(call);
    const uint64_t ticket = call.ticket;
    runtime::Work work = real().Run(call);
    if (!work.Done()) {
      RecordedState* const state = pool_.Take();
      runtime::Work ours = runtime::Work::Adopt(state);
      state->Await(&results_, recorded, ticket, std::move(work));
      return ours;
    }
    if (work.status().ok()) results_.End(recorded);
    return work;
  }

 private:
  RecordedCall Begin(const PreparedCall& call) {
    const CollectiveRequest& request = call.request;
    RecordedCall recorded{.request = request, .out = call.out};
    ReceivedBy(group_, request, call.out, &written_);
    runtime::BegunCall begun{
        .group = group_number_, .record = &call.record, .input = input_, .received = BytesOf(written_)};
    if (request.blocks == nullptr) {
      begun.count = static_cast<uint64_t>(request.count);
    } else {
      recorded.blocks = std::make_shared<BlockTable>(*request.blocks);
      recorded.request.blocks = recorded.blocks.get();
      begun.unequal = true;
      begun.in_counts = recorded.blocks->in_counts;
      begun.out_counts = recorded.blocks->out_counts;
    }
    recorded.number = tape_.Begin(begun);
    return recorded;
  }

  const GroupContext& group_;
  runtime::TapeWriter& tape_;
  const uint32_t group_number_;
  ResultTape results_;
  StatePool<RecordedState> pool_;
  std::vector<runtime::MemoryPiece> pieces_;
  std::vector<WrittenPiece> written_;
  uint16_t input_ = 0;
};

}  // namespace

GroupRecording::GroupRecording(const GroupContext& group, runtime::TapeWriter& tape)
    : group_(group), tape_(tape), number_(tape.AddGroup(group.id, group.members)) {}

std::unique_ptr<Provider> GroupRecording::Around(std::unique_ptr<Provider> real) {
  return std::make_unique<RecordingProvider>(group_, tape_, number_, std::move(real));
}

void GroupRecording::OnFailure(const absl::Status& status) {
  if (!group_.runtime->finalized()) tape_.Fail(number_, status);  // the replayed rank finalizes by itself
}

}  // namespace cohort::comm
