#include "cohort/comm/tape/replaying.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "cohort/comm/provider/stall_watch.h"
#include "cohort/comm/provider/state_pool.h"
#include "cohort/comm/tape/call_difference.h"
#include "cohort/comm/tape/call_memory.h"
#include "cohort/comm/tape/provider_around.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm {
namespace {

using runtime::TapedCall;

// How long a program may wait at the end of the tape, or for a call of another thread, before that is said.
constexpr std::chrono::nanoseconds kEndPatience = std::chrono::seconds(1);
constexpr std::chrono::nanoseconds kOrderPatience = std::chrono::seconds(30);

// A clock that stands still while the process does: under a debugger a call does not run out of time.
class PolledClock {
 public:
  // Goes on by the time since the latest poll, unless that is long ago.
  void Poll() {
    const uint64_t now = CoarseNow();
    if (polled_ != 0) now_ += std::min<uint64_t>(now - polled_, kMostStep);
    polled_ = now;
  }
  uint64_t now() const { return now_; }

 private:
  static constexpr uint64_t kMostStep = 1'000'000'000;  // ns
  uint64_t polled_ = 0;
  uint64_t now_ = 0;
};

class ReplayingProvider;

// A call of the program.
class ReplayedState final : public PooledState<ReplayedState>, private runtime::ReplayedCall {
 public:
  explicit ReplayedState(StatePool<ReplayedState>* pool) : PooledState(pool) {}

  void Wait(ReplayingProvider* provider, const PreparedCall& call, const TapedCall* taped);
  runtime::ReplayedCall* as_waiting() { return this; }
  runtime::AwaitedCalls awaited() const { return {ticket_, ticket_}; }
  void Finish(const absl::Status& status);

  const runtime::CallRecord& record() const { return record_; }
  const TapedCall* taped() const { return taped_; }
  uint64_t deadline_ns() const { return deadline_ns_; }  // of the provider's clock

 private:
  void OnResult(std::span<const std::byte> result) override;

  ReplayingProvider* provider_ = nullptr;
  const TapedCall* taped_ = nullptr;  // null: the tape does not have it
  CollectiveRequest request_;
  std::shared_ptr<BlockTable> blocks_;  // what request_.blocks points to
  runtime::CallRecord record_;
  const void* in_ = nullptr;
  void* out_ = nullptr;
  uint64_t ticket_ = 0;
  uint64_t deadline_ns_ = 0;
};

class ReplayingProvider final : public ProviderAround {
 public:
  ReplayingProvider(const GroupContext& group, runtime::TapePlayer& player, std::unique_ptr<Provider> real)
      : ProviderAround(std::move(real)),
        group_(group),
        player_(player),
        pool_(&group.runtime->engine(), group.source) {}
  ~ReplayingProvider() override { Fail(absl::CancelledError("the communicator was destroyed")); }

  void Start(PreparedCall& call, const void* in, void* out) override {
    call.in = in;
    call.out = out;
  }
  runtime::Work Run(PreparedCall& call) override;
  void BatchBegin() override {}
  void BatchEnd() override {}
  bool Poll() override;
  bool Active() const override { return !pending_.empty(); }
  void Arm() override {}
  absl::Status Register(const Buffer&, runtime::Deadline) override { return absl::OkStatus(); }
  void OnSplit(int, int, uint64_t) override {}
  void Fail(const absl::Status& status) override;
  const runtime::CallRecord* Pending() const override {
    return pending_.empty() ? nullptr : &pending_.front()->record();
  }
  bool WaitsIn(uint64_t) const override { return false; }

  // For a state of this provider.
  void Place(ReplayedState* state, const CollectiveRequest& request, const void* in, void* out,
             std::span<const std::byte> result);
  void Remove(ReplayedState* state) { std::erase(pending_, state); }
  runtime::BlackBoxWriter& black_box() const { return group_.runtime->segment().black_box(); }
  const PolledClock& clock() const { return clock_; }

 private:
  bool ended_in_order() const { return player_.contents().ending == runtime::TapeEnding::kInOrder; }
  runtime::Work Refuse(const PreparedCall& call, const absl::Status& why);
  void CompareInput(const PreparedCall& call, const TapedCall& taped);
  // Why nothing comes any more; OK as long as something may.
  absl::Status WhyNothingComes();
  absl::Status TapeEnds(const ReplayedState& state) const;

  const GroupContext& group_;
  runtime::TapePlayer& player_;
  StatePool<ReplayedState> pool_;
  std::vector<ReplayedState*> pending_;  // in order
  std::vector<WrittenPiece> written_;
  std::vector<runtime::MemoryPiece> input_pieces_;
  PolledClock clock_;
  uint64_t still_since_ = 0;  // on that clock: since then nothing has moved
  uint64_t moved_then_ = 0;
  bool order_said_ = false;
};

void ReplayedState::Wait(ReplayingProvider* provider, const PreparedCall& call, const TapedCall* taped) {
  provider_ = provider;
  taped_ = taped;
  request_ = call.request;
  if (call.request.blocks != nullptr) {
    blocks_ = std::make_shared<BlockTable>(*call.request.blocks);
    request_.blocks = blocks_.get();
  }
  record_ = call.record;
  in_ = call.in;
  out_ = call.out;
  ticket_ = call.ticket;
  deadline_ns_ = DeadlineAfter(provider->clock().now(), call.timeout);
}

void ReplayedState::OnResult(std::span<const std::byte> result) {
  provider_->Remove(this);
  provider_->Place(this, request_, in_, out_, result);
}

void ReplayedState::Finish(const absl::Status& status) {
  blocks_.reset();
  provider_->black_box().Finish(ticket_, status.ok() ? runtime::CallState::kDone : runtime::CallState::kFailed);
  CompleteAndDrop(status);
}

runtime::Work ReplayingProvider::Refuse(const PreparedCall& call, const absl::Status& why) {
  black_box().Finish(call.ticket, runtime::CallState::kFailed);
  group_.fail(why, group_.rank);
  group_.runtime->NoteReportedFailure(why);
  return runtime::Work::Finished(why);
}

runtime::Work ReplayingProvider::Run(PreparedCall& call) {
  if (call.request.memory != MemoryKind::kHost) {
    return Refuse(call, absl::UnimplementedError(
                            "replay: " + runtime::DescribeCallAndSite(call.record) +
                            " is on CUDA memory, of which a tape holds nothing; record a run on host memory"));
  }
  const TapedCall* const taped = player_.Next(group_.id);
  if (taped != nullptr) {
    if (const std::string difference = Difference(group_, call, player_, *taped); !difference.empty()) {
      return Refuse(call, absl::FailedPreconditionError(
                              "replay: " + difference +
                              ": the program, its arguments or its input differ from the recorded run from here on"));
    }
    CompareInput(call, *taped);
  } else if (ended_in_order()) {
    return Refuse(call, absl::FailedPreconditionError(
                            "replay: " + NoSuchCall(group_, call.record, player_) +
                            ": the program, its arguments or its input differ from the recorded run from here on"));
  }
  ReplayedState* const state = pool_.Take();
  runtime::Work work = runtime::Work::Adopt(state);
  state->Wait(this, call, taped);
  pending_.push_back(state);
  still_since_ = clock_.now();
  if (taped != nullptr) player_.Begin(*taped, state->as_waiting());
  return work;
}

void ReplayingProvider::CompareInput(const PreparedCall& call, const TapedCall& taped) {
  static std::atomic<bool> said{false};
  if (said.load() || HashOfInput(group_, call, call.in, &input_pieces_) == taped.input) return;
  if (said.exchange(true)) return;
  std::fprintf(stderr,
               "cohort: replay of rank %d: the input of %s, call %llu of the tape, is not what it was in the recorded "
               "run: from here on the program may compute something else\n",
               group_.members[static_cast<size_t>(group_.rank)], runtime::DescribeCallAndSite(call.record).c_str(),
               static_cast<unsigned long long>(player_.NumberOf(taped)));
}

void ReplayingProvider::Place(ReplayedState* state, const CollectiveRequest& request, const void* in, void* out,
                              std::span<const std::byte> result) {
  ReceivedBy(group_, request, out, &written_);
  const size_t bytes = BytesOf(written_);
  if (bytes != result.size()) {
    const absl::Status wrong =
        absl::DataLossError("replay: the tape has " + std::to_string(result.size()) + " bytes for " +
                            runtime::DescribeCallAndSite(state->record()) + ", which gets " + std::to_string(bytes) +
                            "; record it again with this build");
    state->Finish(wrong);
    group_.fail(wrong, group_.rank);
    return;
  }
  CopyOwnBlock(group_, request, in, out);
  const std::byte* from = result.data();
  for (const WrittenPiece& piece : written_) {
    std::memcpy(piece.data, from, piece.bytes);
    from += piece.bytes;
  }
  state->Finish(absl::OkStatus());
}

bool ReplayingProvider::Poll() {
  if (pending_.empty()) return false;
  clock_.Poll();
  if (std::exchange(moved_then_, player_.moved()) != player_.moved()) still_since_ = clock_.now();
  if (const absl::Status why = WhyNothingComes(); !why.ok()) group_.fail(why, -1);
  return false;
}

absl::Status ReplayingProvider::TapeEnds(const ReplayedState& state) const {
  std::string text = "replay: the tape " + player_.path() + " ends here: ";
  if (state.taped() == nullptr) {
    text += NoSuchCall(group_, state.record(), player_);
  } else {
    text += "the recorded rank got no result of " + runtime::DescribeCallAndSite(state.record());
  }
  return absl::OutOfRangeError(text + ". It was killed, or its disk was full, and what it did next is not known");
}

absl::Status ReplayingProvider::WhyNothingComes() {
  const ReplayedState& oldest = *pending_.front();
  const uint64_t now = clock_.now();
  const auto still = std::chrono::nanoseconds(now - still_since_);
  if (player_.at_end() && !ended_in_order() && still > kEndPatience) return TapeEnds(*pending_.back());
  const TapedCall* const next = player_.NextOfAll();
  if (next == nullptr || still < kOrderPatience) {
    if (now < oldest.deadline_ns()) return absl::OkStatus();
    return absl::DeadlineExceededError("replay: " + runtime::DescribeCallAndSite(oldest.record()) +
                                       " got no result in the recorded run, and its time is over here, too");
  }
  if (now >= oldest.deadline_ns()) {
    return absl::FailedPreconditionError("replay: " + NoSuchCall(group_, oldest.record(), player_) +
                                         ", which no thread of this program makes: the program, its arguments or its "
                                         "input differ from the recorded run");
  }
  if (!std::exchange(order_said_, true)) {
    std::fprintf(stderr, "cohort: replay: %s waits for call %llu of the tape, which another thread has yet to make\n",
                 runtime::DescribeCallAndSite(oldest.record()).c_str(),
                 static_cast<unsigned long long>(player_.NumberOf(*next)));
  }
  return absl::OkStatus();
}

void ReplayingProvider::Fail(const absl::Status& status) {
  const std::vector<ReplayedState*> pending = std::exchange(pending_, {});
  for (ReplayedState* const state : pending) {
    if (state->taped() != nullptr) player_.Forget(*state->taped());
  }
  for (ReplayedState* const state : pending) state->Finish(status);
}

}  // namespace

GroupReplay::GroupReplay(const GroupContext& group, runtime::TapePlayer& player) : group_(group), player_(player) {
  player_.Join(group_.id, this);
}

GroupReplay::~GroupReplay() { player_.Leave(group_.id); }

std::unique_ptr<Provider> GroupReplay::Around(std::unique_ptr<Provider> real) {
  return std::make_unique<ReplayingProvider>(group_, player_, std::move(real));
}

void GroupReplay::OnTapedFailure(const absl::Status& status) { group_.fail(status, -1); }

}  // namespace cohort::comm
