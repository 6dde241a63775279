// The library libnccl-profiler-cohort.so: NCCL's calls, version by version, made into calls of NcclRecorder. NCCL must
// never notice an error: whatever happens, nothing is recorded, and one line on the standard error says why.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "cohort/comm/nccl/profiler/announced_call.h"
#include "cohort/comm/nccl/profiler/call_slots.h"
#include "cohort/comm/nccl/profiler/nccl_recorder.h"
#include "cohort/comm/nccl/profiler/profiler_interface.h"
#include "cohort/comm/nccl/profiler/recording.h"

namespace cohort::comm::nccl_profiler {
namespace {

constexpr uint64_t kMask = kCollectiveEvent | kMessageEvent | kKernelChannelEvent;

void Say(const std::string& why) {
  std::fprintf(stderr, "cohort: NCCL's calls in this process are not shown: %s\n", why.c_str());
}

// NCCL closes the library with its last communicator, but the thread goes on.
void StayLoaded() {
  Dl_info own{};
  if (dladdr(reinterpret_cast<const void*>(&StayLoaded), &own) == 0 || own.dli_fname == nullptr) return;
  (void)dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

Recording* stopped_at_exit = nullptr;

// Null where nothing is recorded in this process.
Recording* Begin() {
  try {
    StayLoaded();
    const absl::StatusOr<Recording*> recording = Recording::Begin();
    if (recording.ok()) {
      stopped_at_exit = *recording;
      if (*recording != nullptr) std::atexit([] { stopped_at_exit->Stop(); });
      return *recording;
    }
    Say(std::string(recording.status().message()));
  } catch (const std::exception& error) {
    Say(error.what());
  }
  return nullptr;
}

// The first communicator makes it.
NcclRecorder* Recorder() {
  static Recording* const recording = Begin();
  return recording == nullptr || recording->InChild() ? nullptr : &recording->recorder();
}

void* ContextOf(uint64_t communicator) { return reinterpret_cast<void*>(static_cast<uintptr_t>(communicator)); }
uint64_t CommunicatorOf(const void* context) { return reinterpret_cast<uintptr_t>(context); }

Result Init(void** context, int* mask, const CommunicatorFacts& facts, uint64_t wanted = kMask) {
  if (context == nullptr || mask == nullptr) return kSuccess;
  *context = nullptr;
  NcclRecorder* const recorder = Recorder();
  *mask = recorder == nullptr ? 0 : static_cast<int>(wanted);  // one mask for all communicators
  if (recorder == nullptr) return kSuccess;
  try {
    *context = ContextOf(recorder->Add(facts));
  } catch (const std::exception& error) {
    Say(error.what());
  }
  return kSuccess;
}

Result Finalize(void* context) {
  if (NcclRecorder* const recorder = Recorder(); recorder != nullptr && context != nullptr) {
    recorder->Remove(CommunicatorOf(context));
  }
  return kSuccess;
}

std::optional<AnnouncedCall> ReadCollective(const Collective3& collective) {
  return ReadCall(collective.function, collective.datatype, collective.count, collective.root);
}
// Without channels it is a call of symmetric memory, of whose kernels some versions say nothing.
std::optional<AnnouncedCall> ReadCollective(const Collective4& collective) {
  std::optional<AnnouncedCall> call =
      ReadCall(collective.function, collective.datatype, collective.count, collective.root);
  if (call.has_value()) call->channels = std::min<int>(collective.channels, CallHandle::kChannels);
  return call;
}
template <typename Message>
std::optional<AnnouncedCall> ReadMessage(const Message& message) {
  return ReadCall(message.function, message.datatype, message.count, message.peer);
}

// Version 3 says with each call which communicator it belongs to.
template <typename Call>
bool Describe(NcclRecorder* recorder, uint64_t communicator, const Call& call, int rank) {
  if constexpr (requires { call.communicator_hash; }) {
    return recorder->Describe(communicator, {.hash = call.communicator_hash, .rank = rank});
  }
  return true;
}

template <typename Call>
void* Announce(NcclRecorder* recorder, void* context, int rank, const Call& announced,
               const std::optional<AnnouncedCall>& call) {
  const uint64_t communicator = CommunicatorOf(context);
  if (!call.has_value() || !Describe(recorder, communicator, announced, rank)) return nullptr;
  return recorder->Announce(communicator, *call);
}

// Copy engines run no kernel.
void* AnnounceCopies(NcclRecorder* recorder, void* context, const Descriptor5& descriptor) {
  std::optional<AnnouncedCall> call = ReadCall(descriptor.collective.function, descriptor.collective.datatype,
                                               descriptor.collective.count, descriptor.collective.root);
  if (call.has_value()) call->channels = 0;
  return Announce(recorder, context, descriptor.rank, descriptor.collective, call);
}

template <typename Descriptor>
void* Start(NcclRecorder* recorder, void* context, const Descriptor& descriptor) {
  switch (static_cast<uint64_t>(descriptor.type)) {
    case kCollectiveEvent:
      return Announce(recorder, context, descriptor.rank, descriptor.collective, ReadCollective(descriptor.collective));
    case kMessageEvent:
      return Announce(recorder, context, descriptor.rank, descriptor.message, ReadMessage(descriptor.message));
    case kKernelChannelEvent:
      return recorder->BeginKernel(descriptor.parent, descriptor.kernel_channel.channel);
    case kCopyCollectiveEvent:
      if constexpr (std::is_same_v<Descriptor, Descriptor5>) return AnnounceCopies(recorder, context, descriptor);
      return nullptr;
    default:
      return nullptr;
  }
}

template <typename Descriptor>
Result StartEvent(void* context, void** handle, Descriptor* descriptor) {
  if (handle == nullptr) return kSuccess;
  *handle = nullptr;
  NcclRecorder* const recorder = Recorder();
  if (recorder == nullptr || descriptor == nullptr) return kSuccess;
  try {
    *handle = Start(recorder, context, *descriptor);
  } catch (const std::exception&) {  // no memory: the call is not shown
  }
  return kSuccess;
}

Result StopEvent(void* handle) {
  NcclRecorder* const recorder = Recorder();
  if (recorder == nullptr || handle == nullptr) return kSuccess;
  try {
    recorder->Stop(handle);
  } catch (const std::exception&) {
  }
  return kSuccess;
}

Result RecordEventState(void* /*handle*/, int /*state*/, void* /*arguments*/) { return kSuccess; }

Result Init3(void** context, int* mask) { return Init(context, mask, {}); }
Result Init4(void** context, int* mask, const char* /*name*/, uint64_t hash, int /*nodes*/, int ranks, int rank,
             void* /*logger*/) {
  return Init(context, mask, {.hash = hash, .rank = rank, .size = ranks});
}
template <uint64_t wanted>
Result Init5(void** context, uint64_t hash, int* mask, const char* /*name*/, int /*nodes*/, int ranks, int rank,
             void* /*logger*/) {
  return Init(context, mask, {.hash = hash, .rank = rank, .size = ranks}, wanted);
}

template <typename Profiler>
constexpr Profiler Serve(decltype(Profiler::init) init) {
  return {"Cohort", init, StartEvent<typename Profiler::Descriptor>, StopEvent, RecordEventState, Finalize};
}

}  // namespace

// NCCL finds the structs by these names, which belong to no namespace.
extern "C" {
// NOLINTBEGIN(readability-identifier-naming): NCCL's names
extern const Profiler3 ncclProfiler_v3;
extern const Profiler4 ncclProfiler_v4;
extern const Profiler5 ncclProfiler_v5;
extern const Profiler6 ncclProfiler_v6;

const Profiler3 ncclProfiler_v3 = Serve<Profiler3>(Init3);
const Profiler4 ncclProfiler_v4 = Serve<Profiler4>(Init4);
const Profiler5 ncclProfiler_v5 = Serve<Profiler5>(Init5<kMask>);
const Profiler6 ncclProfiler_v6 = Serve<Profiler6>(Init5 < kMask | kCopyCollectiveEvent >);
// NOLINTEND(readability-identifier-naming)
}

}  // namespace cohort::comm::nccl_profiler
