// Group: what is behind a Communicator. Identity, order and numbering of the calls, the providers that serve them, and
// the one sticky failure.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/group/call_memo.h"
#include "cohort/comm/group/provider_registry.h"
#include "cohort/comm/group/transport_set.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"
#include "cohort/comm/run/runner.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm {

class BatchState;
template <typename State>
class StatePool;

// Serves one call at a time; entered with engine ownership, which its public functions take themselves.
class Group final : public runtime::ProgressSource, public runtime::MembershipListener, public LinkSource {
 public:
  // `members` are world ranks in group order, the caller among them. `id` is equal on all members and differs from
  // every other group of the epoch.
  Group(runtime::Runtime& runtime, std::vector<int> members, uint64_t id, std::string transports, Tuning tuning,
        Determinism determinism);
  ~Group() override;

  // The id of a group made from `parent`: a hash, never 0. `tag` and `sequence` tell apart groups with equal members.
  static uint64_t MakeId(uint64_t parent, uint64_t tag, uint64_t sequence, const std::vector<int>& members,
                         uint64_t epoch);

  const GroupContext& context() const { return context_; }
  runtime::Runtime& runtime() { return *context_.runtime; }
  absl::Status status();
  // Whether this is a child that was forked after Runtime::Init. It shares the parent's memory of the segment, so that
  // its calls would be taken for the parent's.
  bool InChild() const { return forks_ != forks_now_.load(std::memory_order_relaxed) && context_.size > 1; }
  absl::Status WhyNotInChild() const;

  // Numbers the call, records it, and hands it to its provider.
  runtime::Work Submit(const CallArguments& arguments, const CallOptions& options);
  // The same for the variable-count forms.
  runtime::Work SubmitUnequal(const CallArguments& arguments, const BlockLayout& in_blocks,
                              const BlockLayout& out_blocks, const CallOptions& options);
  // All calls of a batch (comm/batch.h), or none.
  runtime::Work SubmitBatch(std::span<const BatchedCall> calls);
  std::string Explain(CollectiveRequest request);  // under the group's own determinism
  // Takes a table for the calls that follow; every member does so between the same calls, with an equal table.
  void UseTuning(const Tuning& tuning);
  // From now on calls are taken to be made on windows; every member says so between the same calls.
  void ExpectWindows();
  // Fails the group here and on all other members.
  void FailEverywhere(const absl::Status& status, int blamed);
  // The number of this group's earlier subgroups with these members, plus one. Counted for good, since a member may
  // still use a group that another has destroyed: 32 bytes for each list that ever was.
  uint64_t NextChild(const std::vector<int>& members) { return ++children_[MakeId(0, 0, 0, members, 0)]; }
  // The number of earlier groups of these members that were derived with `tag`, plus one.
  uint64_t NextOf(uint64_t tag) { return ++derived_[tag]; }
  uint64_t NextSplit() { return ++splits_; }
  // Of the caller's present attempt to agree on who is left (shrink.cc).
  struct ShrinkRound {
    uint64_t number = 1;
    std::string proposal;  // what it has put into the store; empty: nothing yet
  };
  ShrinkRound& shrink_round() { return shrink_round_; }
  // Writes the site of a call into its record: "train.cc:88". By the engine's owner.
  void NameSite(const std::source_location& site, runtime::CallRecord* record);
  // Communicator::RegisterDeviceMemory.
  absl::Status Register(const Buffer& buffer, runtime::Deadline deadline);
  // Before its first call: this group is what Shrink left of `parent`.
  void SetShrunkFrom(const GroupContext& parent);
  // Tells the providers of a split that all members take part in (Provider::OnSplit).
  void OnSplit(int color, int key, uint64_t child);

  // LinkSource
  absl::StatusOr<std::unique_ptr<Link>> MakeLink(int peer, uint16_t lane) override;
  absl::StatusOr<std::unique_ptr<Fanout>> MakeFanout(uint16_t lane) override;
  // ProgressSource
  bool Poll() override;
  bool Active() const override;
  int Arm(bool* ready) override;
  // MembershipListener
  void OnRanksLost(const std::vector<int>& ranks, const std::string& text) override;
  void OnGroupFailure(const runtime::GroupFailure& failure) override;
  void OnFinalize() override;

 private:
  // The text of a call site, made once per place: "train.cc:88".
  struct SiteMemo {
    const char* file = nullptr;
    uint32_t line = 0;
    std::array<char, sizeof(runtime::CallRecord::site)> text{};
  };
  static constexpr size_t kSites = 64;  // a power of two

  // While it lives a provider works for a call, and may drive the engine meanwhile (agreement, staging): the engine
  // then polls this group, whatever is under way. `lock` is the caller's, taken when the group was entered: where it is
  // the thread's outermost one, so that nothing of the engine's is below us, Drive lets other threads in. By the
  // engine's owner.
  class InsideProvider {
   public:
    InsideProvider(Group& group, const runtime::EngineLock& lock)
        : group_(group), before_(std::exchange(group.entry_, lock.outermost() ? &lock : nullptr)) {
      ++group_.inside_provider_;
      group_.runtime().engine().PollWhileActive(&group_);
    }
    ~InsideProvider() {
      --group_.inside_provider_;
      group_.entry_ = before_;
    }
    InsideProvider(const InsideProvider&) = delete;
    InsideProvider& operator=(const InsideProvider&) = delete;

   private:
    Group& group_;
    const runtime::EngineLock* const before_;
  };

  // GroupContext::drive.
  bool Drive(const std::function<bool()>& done, runtime::Deadline deadline);

  // True for calls that need nobody else.
  bool ServedAlone(const CollectiveRequest& request) const {
    return context_.size == 1 && request.memory == MemoryKind::kHost && !IsPointToPoint(request.kind);
  }
  // Of a call that is ServedAlone: a wrong name is found out where a program is tried out with one rank, too.
  absl::Status CheckNameAlone(CollectiveKind kind, const CallOptions& options) const;
  absl::Status CheckBatch(std::span<const BatchedCall> calls, BatchState* state);
  void StartBatch(std::span<const BatchedCall> calls, BatchState* state, const runtime::EngineLock& lock);
  // A request that is checked, made from `arguments` unless they are null: it is then remembered. `lock` as of
  // InsideProvider.
  runtime::Work SubmitValid(const CollectiveRequest& request, const CallOptions& options,
                            const runtime::EngineLock& lock, const CallArguments* arguments = nullptr);
  runtime::Work SubmitNew(const CallArguments& arguments, const CallOptions& options, const runtime::EngineLock& lock);
  runtime::Work Repeat(RememberedCall& known, const CallArguments& arguments);
  // The provider that serves the request, made when first needed.
  absl::StatusOr<Provider*> ProviderFor(const CollectiveRequest& request);
  // Gives the call its number: the rest of its signature is there.
  void Number(const CollectiveRequest& request, runtime::CallRecord* record);
  // What the messages of the call need of its record: both signatures.
  void FillSignature(const CollectiveRequest& request, const ServicePlan& service, runtime::CallRecord* record);
  // All the rest.
  void FillRecord(const CollectiveRequest& request, runtime::CallRecord* record);
  uint64_t NextSequence(const CollectiveRequest& request);
  const SiteMemo& SiteOf(const std::source_location& site);
  // Ends all calls with `status`. `report`: where none was under way, Runtime::Finalize reports it, unless a call does.
  void FailHere(const absl::Status& status, bool report = true);
  // Tells the other members that the group has failed. `blamed`: a group rank, or -1.
  void TellMembers(const absl::Status& status, int blamed);
  // Tells the providers that the figures in context_ have changed.
  void OnTuning();
  // What comes for links that were never made need not be kept any more.
  void TellTransportsOfEnd() {
    if (runtime().attachment() == nullptr) return;  // the runtime has ended: none is made for this
    TransportSet::Of(runtime()).OnGroupEnd(context_.id, context_.epoch);
  }
  // The oldest call that is under way, or null.
  const runtime::CallRecord* Pending() const;
  // Whether this collective is under way.
  bool WaitsIn(uint64_t sequence) const;
  bool HasMember(int world_rank) const;

  GroupContext context_;
  uint64_t sequence_ = 0;
  uint64_t chain_ = 0;          // ChainSignature of all collectives so far
  std::vector<uint64_t> sent_;  // by peer; empty before the first send or receive
  std::vector<uint64_t> received_;
  std::unordered_map<uint64_t, uint64_t> children_;  // by a hash of the members
  std::map<uint64_t, uint64_t> derived_;
  uint64_t splits_ = 0;
  ShrinkRound shrink_round_;
  std::unique_ptr<StatePool<BatchState>> batches_;  // made when first needed
  CallMemo memo_;
  const uint64_t forks_;
  const std::atomic<uint64_t>& forks_now_;
  int inside_provider_ = 0;
  const runtime::EngineLock* entry_ = nullptr;                   // of InsideProvider; null: nobody is let in
  BlockTable table_;                                             // of the variable-count call that is being checked
  std::vector<SiteMemo> sites_;                                  // made when first needed
  std::array<std::unique_ptr<Provider>, kProviders> providers_;  // made when first needed
  absl::Status status_;
};

}  // namespace cohort::comm
