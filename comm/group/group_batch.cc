// Group::SubmitBatch: the calls of a batch, checked together and started as one.
#include <algorithm>
#include <utility>

#include "cohort/comm/group/batch_state.h"
#include "cohort/comm/group/group.h"
#include "cohort/comm/select/selector.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {

absl::Status Group::CheckNameAlone(CollectiveKind kind, const CallOptions& options) const {
  if (options.algorithm.empty() || FindAlgorithm(kind, options.algorithm) != nullptr) return absl::OkStatus();
  return Select(kind, 0, {}, context_.tuning, options.algorithm).status();
}

// Makes and checks the requests of a batch; the first that is refused refuses them all.
absl::Status Group::CheckBatch(std::span<const BatchedCall> calls, BatchState* state) {
  for (const BatchedCall& call : calls) {
    CollectiveRequest& request = state->requests.emplace_back();
    if (HasUnequalBlocks(call.arguments.kind)) {
      COHORT_RETURN_IF_ERROR(MakeUnequalRequest(call.arguments, call.in_blocks(), call.out_blocks(), context_.rank,
                                                context_.size, &state->NextTable(), &request));
    } else {
      COHORT_RETURN_IF_ERROR(MakeRequest(call.arguments, context_.rank, context_.size, &request));
    }
    COHORT_RETURN_IF_ERROR(ApplyOptions(call.options, context_.determinism, &request));
    if (ServedAlone(request)) {
      COHORT_RETURN_IF_ERROR(CheckNameAlone(request.kind, call.options));
      continue;
    }
    const absl::StatusOr<Provider*> provider = ProviderFor(request);
    if (!provider.ok()) return provider.status();
    const absl::StatusOr<ServicePlan> service = (*provider)->Choose(request, call.options.algorithm);
    if (!service.ok()) return service.status();
    if (std::find(state->providers.begin(), state->providers.end(), *provider) == state->providers.end()) {
      state->providers.push_back(*provider);
    }
  }
  return absl::OkStatus();
}

// Starts what CheckBatch has accepted.
void Group::StartBatch(std::span<const BatchedCall> calls, BatchState* state, const runtime::EngineLock& lock) {
  const auto start = [&](GatheredCall* gathered) {
    state->Add(SubmitValid(gathered->Pack(), gathered->options(), lock), gathered);
  };
  const InsideProvider inside(*this, lock);
  for (Provider* provider : state->providers) provider->BatchBegin();
  for (size_t i = 0; i < calls.size(); ++i) {
    const CollectiveRequest& request = state->requests[i];
    const CallOptions& options = calls[i].options;
    if (ServedAlone(request) || !GatheredCall::Fits(request, options)) {
      state->Add(SubmitValid(request, options, lock), nullptr);
      continue;
    }
    GatheredCall* same = state->Open(request);
    if (same != nullptr && same->Add(request, options)) continue;
    if (same != nullptr) {
      state->CloseGathered(same);
      start(same);
    }
    state->OpenNew(request, options);
  }
  for (GatheredCall* gathered : state->open_gathered()) start(gathered);
  for (Provider* provider : state->providers) provider->BatchEnd();
}

runtime::Work Group::SubmitBatch(std::span<const BatchedCall> calls) {
  if (calls.empty()) return runtime::Work::Finished(absl::OkStatus());
  if (InChild()) [[unlikely]]
    return runtime::Work::Finished(WhyNotInChild());
  runtime::Work work;
  {
    runtime::EngineLock lock(runtime().engine());
    if (!status_.ok()) {
      runtime().NoteReportedFailure(status_);
      return runtime::Work::Finished(status_);
    }
    if (batches_ == nullptr) {
      batches_ = std::make_unique<StatePool<BatchState>>(&runtime().engine(), context_.source);
    }
    BatchState* const state = batches_->Take();
    state->Begin(calls.size());
    if (absl::Status valid = CheckBatch(calls, state); !valid.ok()) {
      batches_->Discard(state);
      return runtime::Work::Finished(std::move(valid));
    }
    work = runtime::Work::Adopt(state);
    StartBatch(calls, state, lock);
    state->Close();
  }
  if (!work.Done()) runtime().engine().Kick();
  return work;
}

}  // namespace cohort::comm
