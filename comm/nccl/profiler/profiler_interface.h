// The interface through which NCCL calls a profiler plug-in, in its versions 3 (NCCL 2.26) to 6, as far as it is used
// here. NCCL publishes it in ext-profiler/example/nccl/profiler_vN.h. A library exports a struct `ncclProfiler_vN` for
// each version N that it serves, and NCCL takes the newest that both know.
//
// NCCL owns all descriptors. They end with a union of event types, of which only the beginnings below are read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::comm::nccl_profiler {

// ncclResult_t. NCCL goes on whatever a plug-in answers, so nothing else is ever answered.
using Result = int;
inline constexpr Result kSuccess = 0;

// Bits of the mask by which a plug-in asks for events, and types of events.
inline constexpr uint64_t kCollectiveEvent = 1u << 1;
inline constexpr uint64_t kMessageEvent = 1u << 2;
inline constexpr uint64_t kKernelChannelEvent = 1u << 6;    // the kernel's part on one channel begins; its stop ends it
inline constexpr uint64_t kCopyCollectiveEvent = 1u << 12;  // version 6: a collective by copy engines

struct Collective3 {
  const char* communicator_name;
  uint64_t communicator_hash;
  uint64_t number;  // of its function, not of all
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* datatype;
};
struct Message3 {
  const char* communicator_name;
  uint64_t communicator_hash;
  const char* function;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
};
struct KernelChannel {
  uint8_t channel;
};
struct Descriptor3 {
  uint8_t type;
  void* parent;  // handle of the event that this one is part of
  int rank;
  union {
    Collective3 collective;
    Message3 message;
    KernelChannel kernel_channel;
  };
};

// From version 4 on `init` describes the communicator.
struct Collective4 {
  uint64_t number;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels;
};
struct Message4 {
  const char* function;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
};
template <typename Type>
struct DescriptorOf {
  Type type;
  void* parent;
  int rank;
  union {
    Collective4 collective;  // of copy engines too, without `channels`
    Message4 message;
    KernelChannel kernel_channel;
  };
};
using Descriptor4 = DescriptorOf<uint8_t>;
using Descriptor5 = DescriptorOf<uint64_t>;  // of version 6 too

// The struct that a library exports. Versions differ in the event's descriptor, and in what `init` tells.
template <typename DescriptorType, typename... InitArguments>
struct ProfilerOf {
  using Descriptor = DescriptorType;

  const char* name;
  Result (*init)(void** context, InitArguments... arguments);
  Result (*start_event)(void* context, void** handle, Descriptor* descriptor);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, int state, void* arguments);
  Result (*finalize)(void* context);
};
using Profiler3 = ProfilerOf<Descriptor3, int* /*mask*/>;
using Profiler4 = ProfilerOf<Descriptor4, int* /*mask*/, const char* /*name*/, uint64_t /*hash*/, int /*nodes*/,
                             int /*ranks*/, int /*rank*/, void* /*logger*/>;
using Profiler5 = ProfilerOf<Descriptor5, uint64_t /*hash*/, int* /*mask*/, const char* /*name*/, int /*nodes*/,
                             int /*ranks*/, int /*rank*/, void* /*logger*/>;
using Profiler6 = Profiler5;

}  // namespace cohort::comm::nccl_profiler
