// The declared parts of NCCL's structs lie where NCCL has them. The numbers are those of the headers that NCCL
// publishes in ext-profiler/example/nccl, compiled for a 64-bit machine.
#include "cohort/comm/nccl/profiler/profiler_interface.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

namespace cohort::comm::nccl_profiler {
namespace {

// The union begins at 24 in all versions.
constexpr size_t kUnion = 24;

static_assert(offsetof(Descriptor3, type) == 0 && sizeof(Descriptor3::type) == 1);
static_assert(offsetof(Descriptor3, parent) == 8 && offsetof(Descriptor3, rank) == 16);
static_assert(offsetof(Descriptor3, collective) == kUnion && offsetof(Descriptor3, message) == kUnion);
static_assert(offsetof(Descriptor3, kernel_channel) == kUnion);
static_assert(kUnion + offsetof(Collective3, communicator_name) == 24);
static_assert(kUnion + offsetof(Collective3, communicator_hash) == 32);
static_assert(kUnion + offsetof(Collective3, number) == 40);
static_assert(kUnion + offsetof(Collective3, function) == 48);
static_assert(kUnion + offsetof(Collective3, send_buffer) == 56);
static_assert(kUnion + offsetof(Collective3, receive_buffer) == 64);
static_assert(kUnion + offsetof(Collective3, count) == 72);
static_assert(kUnion + offsetof(Collective3, root) == 80);
static_assert(kUnion + offsetof(Collective3, datatype) == 88);
static_assert(kUnion + offsetof(Message3, communicator_hash) == 32);
static_assert(kUnion + offsetof(Message3, function) == 40);
static_assert(kUnion + offsetof(Message3, buffer) == 48);
static_assert(kUnion + offsetof(Message3, datatype) == 56);
static_assert(kUnion + offsetof(Message3, count) == 64);
static_assert(kUnion + offsetof(Message3, peer) == 72);

static_assert(sizeof(Descriptor4::type) == 1 && sizeof(Descriptor5::type) == 8);
static_assert(offsetof(Descriptor4, parent) == 8 && offsetof(Descriptor5, parent) == 8);
static_assert(offsetof(Descriptor4, rank) == 16 && offsetof(Descriptor5, rank) == 16);
static_assert(offsetof(Descriptor4, collective) == kUnion && offsetof(Descriptor5, collective) == kUnion);
static_assert(offsetof(Descriptor4, message) == kUnion && offsetof(Descriptor5, message) == kUnion);
static_assert(offsetof(Descriptor4, kernel_channel) == kUnion && offsetof(Descriptor5, kernel_channel) == kUnion);
static_assert(kUnion + offsetof(Collective4, number) == 24);
static_assert(kUnion + offsetof(Collective4, function) == 32);
static_assert(kUnion + offsetof(Collective4, send_buffer) == 40);
static_assert(kUnion + offsetof(Collective4, receive_buffer) == 48);
static_assert(kUnion + offsetof(Collective4, count) == 56);
static_assert(kUnion + offsetof(Collective4, root) == 64);
static_assert(kUnion + offsetof(Collective4, datatype) == 72);
static_assert(kUnion + offsetof(Collective4, channels) == 80);
static_assert(kUnion + offsetof(Message4, function) == 24);
static_assert(kUnion + offsetof(Message4, buffer) == 32);
static_assert(kUnion + offsetof(Message4, datatype) == 40);
static_assert(kUnion + offsetof(Message4, count) == 48);
static_assert(kUnion + offsetof(Message4, peer) == 56);
static_assert(sizeof(KernelChannel::channel) == 1);

// Six pointers in this order.
template <typename Profiler>
constexpr bool HasPublishedLayout() {
  return sizeof(Profiler) == 48 && offsetof(Profiler, name) == 0 && offsetof(Profiler, init) == 8 &&
         offsetof(Profiler, start_event) == 16 && offsetof(Profiler, stop_event) == 24 &&
         offsetof(Profiler, record_event_state) == 32 && offsetof(Profiler, finalize) == 40;
}
static_assert(HasPublishedLayout<Profiler3>() && HasPublishedLayout<Profiler4>() && HasPublishedLayout<Profiler5>());
static_assert(sizeof(Result) == 4 && std::is_same_v<Profiler5, Profiler6>);

TEST(ProfilerInterfaceTest, EventsHaveTheBitsOfNccl) {
  EXPECT_EQ(kCollectiveEvent, 2u);
  EXPECT_EQ(kMessageEvent, 4u);
  EXPECT_EQ(kKernelChannelEvent, 64u);
  EXPECT_EQ(kCopyCollectiveEvent, 4096u);
}

}  // namespace
}  // namespace cohort::comm::nccl_profiler
