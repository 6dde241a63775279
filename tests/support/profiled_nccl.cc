#include "tests/support/profiled_nccl.h"

#include <dlfcn.h>

#include <string_view>
#include <type_traits>

namespace cohort::testing {

using comm::nccl_profiler::Descriptor3;
using comm::nccl_profiler::Descriptor4;
using comm::nccl_profiler::Descriptor5;
using comm::nccl_profiler::kCollectiveEvent;
using comm::nccl_profiler::kCopyCollectiveEvent;
using comm::nccl_profiler::kKernelChannelEvent;
using comm::nccl_profiler::kMessageEvent;
using comm::nccl_profiler::Profiler3;
using comm::nccl_profiler::Profiler4;
using comm::nccl_profiler::Profiler5;

namespace {

bool IsMessage(const char* function) {
  return function != nullptr && (std::string_view(function) == "Send" || std::string_view(function) == "Recv");
}

// Descriptors are longer than what is declared of them: NCCL's are unions of all events.
template <typename Descriptor>
struct Whole {
  Descriptor descriptor{};
  char rest[128] = {};
};

template <typename Descriptor>
void Fill(uint64_t type, const void* parent, const char* function, const char* datatype, size_t count, int root_or_peer,
          int channels, Descriptor* descriptor) {
  descriptor->type = static_cast<decltype(descriptor->type)>(type);
  descriptor->parent = const_cast<void*>(parent);
  if (type == kKernelChannelEvent) {
    descriptor->kernel_channel.channel = static_cast<uint8_t>(channels);
  } else if (type == kMessageEvent) {
    descriptor->message.function = function;
    descriptor->message.datatype = datatype;
    descriptor->message.count = count;
    descriptor->message.peer = root_or_peer;
  } else if (type == kCollectiveEvent || type == kCopyCollectiveEvent) {
    descriptor->collective.function = function;
    descriptor->collective.datatype = datatype;
    descriptor->collective.count = count;
    descriptor->collective.root = root_or_peer;
    if constexpr (requires { descriptor->collective.channels; }) {
      if (type == kCollectiveEvent) descriptor->collective.channels = static_cast<uint8_t>(channels);
    }
  }
}

template <typename Profiler>
const Profiler* Find(void* library, const char* name) {
  return static_cast<const Profiler*>(dlsym(library, name));
}

}  // namespace

template <typename Use>
void ProfiledNccl::ForProfiler(const Use& use) const {
  if (five_ != nullptr) use(five_);
  if (four_ != nullptr) use(four_);
  if (three_ != nullptr) use(three_);
}

ProfiledNccl::ProfiledNccl(const std::string& path, int newest)
    : library_(path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) return;
  if (newest >= 6) five_ = Find<Profiler5>(library_, "ncclProfiler_v6");
  if (five_ != nullptr) {
    version_ = 6;
  } else if (newest >= 5 && (five_ = Find<Profiler5>(library_, "ncclProfiler_v5")) != nullptr) {
    version_ = 5;
  } else if (newest >= 4 && (four_ = Find<Profiler4>(library_, "ncclProfiler_v4")) != nullptr) {
    version_ = 4;
  } else if (newest >= 3 && (three_ = Find<Profiler3>(library_, "ncclProfiler_v3")) != nullptr) {
    version_ = 3;
  }
}

ProfiledNccl::~ProfiledNccl() {
  if (library_ != nullptr) dlclose(library_);
}

ProfiledNccl::Communicator ProfiledNccl::Init(uint64_t hash, int size, int rank) {
  Communicator communicator{hash, size, rank, nullptr};
  hash_ = hash;
  rank_ = rank;
  if (five_ != nullptr) {
    five_->init(&communicator.context, hash, &mask_, "name", 1, size, rank, nullptr);
  } else if (four_ != nullptr) {
    four_->init(&communicator.context, &mask_, "name", hash, 1, size, rank, nullptr);
  } else if (three_ != nullptr) {
    three_->init(&communicator.context, &mask_);
  }
  return communicator;
}

void ProfiledNccl::Destroy(const Communicator& communicator) const {
  ForProfiler([&](const auto* profiler) { profiler->finalize(communicator.context); });
}

void* ProfiledNccl::Start(void* context, uint64_t type, const void* parent, const char* function, const char* datatype,
                          size_t count, int root_or_peer, int channels) const {
  void* handle = nullptr;
  ForProfiler([&](const auto* profiler) {
    using Descriptor = typename std::remove_pointer_t<decltype(profiler)>::Descriptor;
    Whole<Descriptor> whole;
    Descriptor& descriptor = whole.descriptor;
    Fill(type, parent, function, datatype, count, root_or_peer, channels, &descriptor);
    if constexpr (std::is_same_v<Descriptor, Descriptor3>) {
      descriptor.rank = rank_;
      if (type == kCollectiveEvent) descriptor.collective.communicator_hash = hash_;
      if (type == kMessageEvent) descriptor.message.communicator_hash = hash_;
    }
    profiler->start_event(context, &handle, &descriptor);
  });
  return handle;
}

void ProfiledNccl::Stop(void* handle) const {
  ForProfiler([&](const auto* profiler) { profiler->stop_event(handle); });
}

void ProfiledNccl::PassNulls() const {
  void* handle = nullptr;
  int mask = 0;
  if (five_ != nullptr) {
    Whole<Descriptor5> whole;
    five_->init(nullptr, 1, &mask, nullptr, 1, 2, 0, nullptr);
    five_->init(&handle, 1, nullptr, nullptr, 1, 2, 0, nullptr);
    five_->start_event(nullptr, &handle, nullptr);
    five_->start_event(nullptr, nullptr, &whole.descriptor);
    five_->record_event_state(nullptr, 99, nullptr);
  }
  Stop(nullptr);
  Destroy({});
}

void ProfiledNccl::Launch(const Communicator& communicator, Call* call) const {
  const uint64_t type = IsMessage(call->function) ? kMessageEvent : kCollectiveEvent;
  if ((mask() & type) == 0) return;
  call->handle = Start(communicator.context, type, nullptr, call->function, call->datatype, call->count,
                       call->root_or_peer, call->channels);
  if (call->handle != nullptr) Stop(call->handle);
}

void ProfiledNccl::BeginKernel(const Communicator& communicator, Call* call) const {
  if ((mask() & kKernelChannelEvent) == 0) return;
  for (int channel = 0; channel < call->channels; ++channel) {
    call->kernels.push_back(
        Start(communicator.context, kKernelChannelEvent, call->handle, nullptr, nullptr, 0, 0, channel));
  }
}

void ProfiledNccl::EndKernel(Call* call) const {
  for (void* const kernel : call->kernels) {
    if (kernel != nullptr) Stop(kernel);
  }
  call->kernels.clear();
}

}  // namespace cohort::testing
