#include "cohort/comm/group/make_call.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cohort/comm/check/result_hash.h"
#include "cohort/comm/group/local_call.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

// Completes a call that was checked.
absl::Status ChooseService(const GroupContext& group, GroupProviders& providers, CallRecorder& recorder,
                           const CallOptions& options, RememberedCall* made) {
  const CollectiveRequest& request = made->request;
  made->provider = nullptr;
  COHORT_RETURN_IF_ERROR(CheckComparable(request, group.checks, group.size));
  if (ServedAlone(group, request)) return CheckNameAlone(group, request.kind, options);
  COHORT_ASSIGN_OR_RETURN(Provider* const provider, providers.For(request));
  COHORT_ASSIGN_OR_RETURN(made->service, provider->Choose(request, options.algorithm));
  made->provider = provider;
  recorder.Sign(request, made->service, &made->record);
  recorder.Describe(request, &made->record);
  made->beyond_sequence = runtime::HashBeyondSequence(made->record.signature);
  made->description = {.service = recorder.ServiceOf(request, *provider, made->service)};
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCall(const GroupContext& group, const CallArguments& arguments, const CallOptions& options,
                       const CallShape* shape, RememberedCall* made) {
  made->id = 0;
  made->plan.reset();
  made->inline_run.reset();
  made->stage = PreparedCall::Stage::kNew;
  CollectiveRequest& request = made->request;
  request = CollectiveRequest();
  if (HasUnequalBlocks(arguments.kind)) {
    if (made->blocks.use_count() != 1) made->blocks = std::make_shared<BlockTable>();  // none, or an operation's too
    const BlockLayout none;
    COHORT_RETURN_IF_ERROR(MakeUnequalRequest(arguments, shape == nullptr ? none : shape->in_blocks,
                                              shape == nullptr ? none : shape->out_blocks, group.rank, group.size,
                                              made->blocks.get(), &request));
  } else {
    COHORT_RETURN_IF_ERROR(MakeRequest(arguments, group.rank, group.size, &request));
  }
  COHORT_RETURN_IF_ERROR(ApplyOptions(options, group.determinism, &request));
  if (shape != nullptr) request.parts = shape->parts;

  const BufferBlocks used = BlocksOf(arguments.kind, group.rank == arguments.root, group.size);
  const auto bytes_of = [](const auto& buffer, int blocks) {
    return blocks == 0 ? 0 : static_cast<size_t>(buffer.count) * SizeOf(buffer.dtype);
  };
  made->arguments = arguments;
  made->timeout = options.timeout;
  made->determinism = options.determinism;
  made->stream = options.stream;
  made->shaped = shape != nullptr;
  made->input = shape == nullptr ? InputMeaning::kData : shape->input;
  made->in_bytes = bytes_of(arguments.in, used.in);
  made->out_bytes = bytes_of(arguments.out, used.out);
  made->out_minus_in = reinterpret_cast<uintptr_t>(arguments.out.data) - reinterpret_cast<uintptr_t>(arguments.in.data);
  made->may_repeat =
      CallMemo::CanRemember(options) && request.memory == MemoryKind::kHost && request.op != ReduceOp::kPreMulSum;
  return absl::OkStatus();
}

absl::Status MakeCall(const GroupContext& group, GroupProviders& providers, CallRecorder& recorder,
                      const PassedCall& call, std::unique_ptr<RememberedCall>* made) {
  if (*made == nullptr) *made = std::make_unique<RememberedCall>();
  COHORT_RETURN_IF_ERROR(CheckCall(group, call.arguments, call.options, call.shape, made->get()));
  return ChooseService(group, providers, recorder, call.options, made->get());
}

}  // namespace cohort::comm
