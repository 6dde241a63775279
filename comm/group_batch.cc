// Group::SubmitBatch: the calls of a batch, checked together and started as one.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "comm/batch_state.h"
#include "comm/group.h"
#include "runtime/base/status_macros.h"

namespace cohort::comm {

// Makes and checks the requests of a batch; the first that is refused refuses them all.
absl::Status Group::CheckBatch(std::span<const BatchedCall> calls, std::vector<CollectiveRequest>* requests,
                               std::vector<Provider*>* providers) {
  for (const BatchedCall& call : calls) {
    CollectiveRequest& request = requests->emplace_back();
    COHORT_RETURN_IF_ERROR(MakeRequest(call.arguments, context_.rank, context_.size, &request));
    COHORT_RETURN_IF_ERROR(ApplyOptions(call.options, context_.determinism, &request));
    if (ServedAlone(request)) continue;
    const absl::StatusOr<Provider*> provider = ProviderFor(request);
    if (!provider.ok()) return provider.status();
    const absl::StatusOr<ServicePlan> service = (*provider)->Choose(request, call.options.algorithm);
    if (!service.ok()) return service.status();
    if (std::find(providers->begin(), providers->end(), *provider) == providers->end()) {
      providers->push_back(*provider);
    }
  }
  return absl::OkStatus();
}

runtime::Work Group::SubmitBatch(std::span<const BatchedCall> calls) {
  if (calls.empty()) return runtime::Work::Finished(absl::OkStatus());
  auto* const state = new BatchState(&runtime().engine(), this);
  runtime::Work work(state);
  {
    runtime::EngineLock lock(runtime().engine());
    if (!status_.ok()) {
      runtime().NoteReportedFailure(status_);
      return runtime::Work::Finished(status_);
    }
    std::vector<CollectiveRequest> requests;
    std::vector<Provider*> providers;
    if (absl::Status valid = CheckBatch(calls, &requests, &providers); !valid.ok()) {
      return runtime::Work::Finished(std::move(valid));
    }
    for (Provider* provider : providers) provider->BatchBegin();
    std::vector<std::unique_ptr<GatheredCall>> gathered;  // one for each type and op
    const auto start = [&](std::unique_ptr<GatheredCall> ready) {
      const CollectiveRequest request = ready->Pack();
      const CallOptions options = ready->options();
      state->Add(SubmitValid(request, options), std::move(ready));
    };
    for (size_t i = 0; i < calls.size(); ++i) {
      const CollectiveRequest& request = requests[i];
      const CallOptions& options = calls[i].options;
      if (ServedAlone(request) || !GatheredCall::Fits(request, options)) {
        state->Add(SubmitValid(request, options), nullptr);
        continue;
      }
      const auto same = std::find_if(gathered.begin(), gathered.end(),
                                     [&](const auto& candidate) { return candidate->GoesWith(request); });
      if (same != gathered.end() && (*same)->Add(request, options)) continue;
      if (same != gathered.end()) {
        start(std::move(*same));
        gathered.erase(same);
      }
      gathered.push_back(std::make_unique<GatheredCall>(request, options));
      gathered.back()->Add(request, options);
    }
    for (auto& ready : gathered) start(std::move(ready));
    for (Provider* provider : providers) provider->BatchEnd();
    state->Close();
  }
  if (!work.Done()) runtime().engine().Kick();
  return work;
}

}  // namespace cohort::comm
