// Group: what is behind a Communicator. Identity, order and numbering of the calls, the providers that serve them, and
// the one sticky failure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/group/call_memo.h"
#include "cohort/comm/group/call_recorder.h"
#include "cohort/comm/group/derived_groups.h"
#include "cohort/comm/group/group_links.h"
#include "cohort/comm/group/group_providers.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm {

class BatchState;
class Communicator;
class Group;
template <typename State>
class StatePool;

// The group behind a communicator. Defined with communicators, which are above this folder.
Group& GroupOf(Communicator& communicator);

// Serves one call at a time; entered with engine ownership, which its public functions take themselves.
class Group final : public runtime::ProgressSource, public runtime::MembershipListener {
 public:
  // `members` are world ranks in group order, the caller among them. `id` is equal on all members and differs from
  // every other group of the epoch. The group also fails when one of `fails_with` is lost, world ranks in order.
  Group(runtime::Runtime& runtime, std::vector<int> members, uint64_t id, std::string transports, Tuning tuning,
        Determinism determinism, std::vector<int> fails_with = {});
  // A group of some members of `parent`, with its settings.
  Group(Group& parent, std::vector<int> members, uint64_t id, std::vector<int> fails_with);
  ~Group() override;

  const GroupContext& context() const { return context_; }
  DerivedGroups& derived() { return derived_; }
  // By the engine's owner.
  CallRecorder& recorder() { return recorder_; }
  CallMemo& memo() { return memo_; }  // the same
  runtime::Runtime& runtime() { return *context_.runtime; }
  absl::Status status();
  // Whether this is a child that was forked after Runtime::Init. It shares the parent's memory of the segment, so that
  // its calls would be taken for the parent's.
  bool InChild() const { return forks_.InChild() && context_.size > 1; }
  absl::Status WhyNotInChild() const;

  // Finds or makes the prepared call, and runs it. `shape`: of a variable-count form; null for other calls.
  runtime::Work Submit(const CallArguments& arguments, const CallOptions& options, const CallShape* shape = nullptr);
  // All calls of a batch (comm/batch.h), or none.
  runtime::Work SubmitBatch(std::span<const BatchedCall> calls);
  std::string Explain(CollectiveRequest request);  // under the group's own determinism
  // Takes a table for the calls that follow; every member does so between the same calls, with an equal table.
  void UseTuning(const Tuning& tuning);
  // From now on calls are taken to be made on windows; every member says so between the same calls.
  void ExpectWindows();
  // Fails the group here and on all other members.
  void FailEverywhere(const absl::Status& status, int blamed);
  // Communicator::RegisterDeviceMemory.
  absl::Status Register(const Buffer& buffer, runtime::Deadline deadline);
  // Before its first call: this group is what Shrink left of `parent`.
  void SetShrunkFrom(const GroupContext& parent);
  friend void FailWith(Communicator& group, const Communicator& whole);  // comm/fail_with.h
  friend class Communicator;  // which destroys no group in a forked child, however many members it has
  // Tells the providers of a split that all members take part in (Provider::OnSplit).
  void OnSplit(int color, int key, uint64_t child);

  // ProgressSource
  bool Poll() override;
  bool Active() const override;
  int Arm(bool* ready) override;
  // MembershipListener
  void OnRanksLost(const std::vector<int>& ranks, const std::string& text) override;
  void OnGroupFailure(const runtime::GroupFailure& failure) override;
  void OnFinalize() override;

 private:
  // While it lives a provider works for a call, and may drive the engine meanwhile (agreement, staging): the engine
  // then polls this group, whatever is under way. `lock` is the caller's, taken when the group was entered: where it is
  // the thread's outermost one, so that nothing of the engine's is below us, Drive lets other threads in. By the
  // engine's owner.
  class InsideProvider {
   public:
    InsideProvider(Group& group, const runtime::EngineLock& lock) : group_(group), before_(group.entry_) {
      group_.runtime().engine().PollWhileActive(&group_);  // which may throw
      group_.entry_ = lock.outermost() ? &lock : nullptr;
      ++group_.inside_provider_;
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

  // Submit, for the engine's owner. `lock` as of InsideProvider.
  runtime::Work FindAndRun(const CallArguments& arguments, const CallOptions& options, const CallShape* shape,
                           const runtime::EngineLock& lock);
  runtime::Work MakeAndRun(const CallArguments& arguments, const CallOptions& options, const CallShape* shape,
                           const runtime::EngineLock& lock);
  // Remembers and runs a call that was made. `made`: see CallMemo::Keep.
  runtime::Work RunMade(std::unique_ptr<RememberedCall>& made, const runtime::EngineLock& lock);
  // Numbers the call, records it, and has its provider run it.
  runtime::Work Run(RememberedCall& call, const void* in, void* out);
  // Ends all calls with `status`. `report`: where none was under way, Runtime::Finalize reports it, unless a call does.
  void FailHere(const absl::Status& status, bool report = true);
  // Tells the other members that the group has failed. `blamed`: a group rank, or -1.
  void TellMembers(const absl::Status& status, int blamed);

  GroupContext context_;
  runtime::Engine& engine_;  // the runtime's, and its black box: looked up once
  runtime::BlackBoxWriter& black_box_;
  GroupLinks links_;
  GroupProviders providers_;
  CallRecorder recorder_;
  DerivedGroups derived_;
  std::unique_ptr<StatePool<BatchState>> batches_;  // made when first needed
  CallMemo memo_;
  std::unique_ptr<RememberedCall> made_;  // where the next call is made; null: not yet
  const runtime::ForkWatch forks_;
  int inside_provider_ = 0;
  const runtime::EngineLock* entry_ = nullptr;  // of InsideProvider; null: nobody is let in
  absl::Status status_;
};

}  // namespace cohort::comm
