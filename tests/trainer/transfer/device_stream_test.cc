// In which order streams are told to wait for each other, by a device type of the test's: no device is needed.
#include "cohort/trainer/transfer/device_stream.h"

#include <string>
#include <vector>

#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr c10::StreamId kPool = 100;

std::string NameOf(const c10::Stream& stream) {
  return std::to_string(stream.device_index()) + ":" + std::to_string(stream.id());
}

// Streams are numbers: 0 is the default one, those of the pool begin at 100. Writes down who waits for whom.
struct Devices final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {c10::kCUDA, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, current);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, kPool + taken++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  // An override with libtorch 2.x; 1.13 has no such function.
  void* getStreamNativeHandle(c10::Stream stream) const { return reinterpret_cast<void*>(stream.id()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    *event = new c10::Stream(stream);
    ++events;
  }
  void block(void* event, const c10::Stream& stream) const override {
    waits.push_back(NameOf(stream) + " waits for " + NameOf(*static_cast<c10::Stream*>(event)));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<c10::Stream*>(event);
    --events;
  }

  c10::StreamId current = 0;
  mutable int taken = 0, events = 0;
  mutable std::vector<std::string> waits;
};

// A handle is the address of the stream's number here.
std::optional<void*> Told(const c10::Stream& stream) { return reinterpret_cast<void*>(stream.id()); }
std::optional<void*> Untold(const c10::Stream&) { return std::nullopt; }
void* Handle(c10::StreamId id) { return reinterpret_cast<void*>(id); }

const c10::Device kFirst(c10::kCUDA, 0), kSecond(c10::kCUDA, 1);

TEST(DeviceStreams, ACallComesAfterTheCurrentStream) {
  Devices devices;
  DeviceStreams streams(devices, Told);
  devices.current = 7;
  EXPECT_EQ(streams.ForCall(kFirst), Handle(kPool));
  EXPECT_THAT(devices.waits, ElementsAre("0:100 waits for 0:7"));
  EXPECT_EQ(devices.events, 0);
}

TEST(DeviceStreams, ADeviceHasOneStreamForCalls) {
  Devices devices;
  DeviceStreams streams(devices, Told);
  EXPECT_EQ(streams.ForCall(kFirst), Handle(kPool));
  EXPECT_EQ(streams.ForCall(kSecond), Handle(kPool + 1));
  EXPECT_EQ(streams.ForCall(kFirst), Handle(kPool));
  EXPECT_THAT(devices.waits, ElementsAre("0:100 waits for 0:0", "1:101 waits for 1:0", "0:100 waits for 0:0"));
}

TEST(DeviceStreams, LaterWorkWaitsForCalls) {
  Devices devices;
  DeviceStreams streams(devices, Told);
  streams.ForCall(kFirst);
  devices.waits.clear();
  devices.current = 3;
  streams.Follow(kFirst);
  EXPECT_THAT(devices.waits, ElementsAre("0:3 waits for 0:100"));
  EXPECT_EQ(devices.events, 0);
}

// libtorch 1.13.
TEST(DeviceStreams, CallsAreOnTheDefaultStreamWithoutHandles) {
  Devices devices;
  DeviceStreams streams(devices, Untold);
  EXPECT_EQ(streams.ForCall(kFirst), nullptr);
  EXPECT_THAT(devices.waits, IsEmpty());  // the current one is the same
  devices.current = 5;
  EXPECT_EQ(streams.ForCall(kFirst), nullptr);
  streams.Follow(kFirst);
  EXPECT_THAT(devices.waits, ElementsAre("0:0 waits for 0:5", "0:5 waits for 0:0"));
}

// The process's own, where libtorch has no CUDA: what it would be told to do on a machine that has.
class CudaStreamsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    devices = new Devices;  // for ever: libtorch keeps it
    if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) c10::impl::DeviceGuardImplRegistrar(c10::kCUDA, devices);
  }
  void SetUp() override {
    if (c10::impl::getDeviceGuardImpl(c10::kCUDA) != devices) GTEST_SKIP() << "this libtorch has CUDA";
    devices->waits.clear();
    devices->current = 0;
  }
  // A tensor of no elements: nothing is on the device.
  static at::Tensor TensorOn(c10::Device device) {
    return at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), nullptr, false),
        c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>());
  }
  static Devices* devices;
};
Devices* CudaStreamsTest::devices = nullptr;

// Waiting on the host fails the test.
class Pending final : public runtime::WorkState {
 public:
  Pending() { Reset(1); }
  void End(absl::Status status) { Complete(std::move(status)); }

 private:
  void Wait(runtime::Deadline) override { ADD_FAILURE() << "the host waits"; }
};

TEST_F(CudaStreamsTest, TheHostDoesNotWaitForAnOperationOnADevice) {
  auto* state = new Pending;
  runtime::Work work = runtime::Work::Adopt(state);
  devices->current = 2;
  EXPECT_TRUE(AwaitOnStream(work, TensorOn(kFirst)).ok());
  ASSERT_EQ(devices->waits.size(), 1U);
  EXPECT_THAT(devices->waits[0], testing::StartsWith("0:2 waits for 0:"));
  EXPECT_FALSE(work.Done());
  state->End(absl::UnavailableError("a peer is gone"));
  EXPECT_EQ(AwaitOnStream(work, TensorOn(kFirst)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(devices->waits.size(), 1U);
}

TEST_F(CudaStreamsTest, StreamsThatFillOneTensorFollowEachOther) {
  StreamChain chain;
  const at::Tensor tensor = TensorOn(kFirst);
  for (const c10::StreamId current : {4, 4, 6, 6, 4}) {
    devices->current = current;
    chain.Enter(tensor);
  }
  EXPECT_THAT(devices->waits, ElementsAre("0:6 waits for 0:4", "0:4 waits for 0:6"));
  StreamChain().Enter(at::zeros({1}));
  EXPECT_EQ(devices->waits.size(), 2U);
}

// Whatever comm then makes of memory that is on no device.
TEST_F(CudaStreamsTest, CollectivesComeAfterTheCurrentStream) {
  Job job;
  comm::Communicator& world = job.world();
  float value = 1;
  const comm::Buffer buffer(&value, 1, comm::DataType::kFloat32, comm::MemoryKind::kCuda, 1);
  const std::vector<int64_t> counts = {1};
  const comm::BlockLayout blocks = {.counts = counts, .displacements = {}};
  const CallBuffers two[] = {{buffer, buffer}, {buffer, buffer}};
  devices->current = 9;
  const auto waits = [&](runtime::Work work) {
    (void)work.Wait();
    return std::exchange(devices->waits, {}).size();
  };
  EXPECT_EQ(waits(AllReduce(world, buffer, buffer, comm::ReduceOp::kSum)), 1U);
  EXPECT_EQ(waits(Broadcast(world, buffer, 0)), 1U);
  EXPECT_EQ(waits(AllGather(world, buffer, buffer)), 1U);
  EXPECT_EQ(waits(AllGathers(world, two)), 1U);
  EXPECT_EQ(waits(AllGatherV(world, buffer, buffer, blocks)), 1U);
  EXPECT_EQ(waits(ReduceScatter(world, buffer, buffer, comm::ReduceOp::kSum)), 1U);
  EXPECT_EQ(waits(ReduceScatterV(world, buffer, blocks, buffer, comm::ReduceOp::kSum)), 1U);
  const comm::Buffer host(&value, 1);
  EXPECT_TRUE(AllReduce(world, host, host, comm::ReduceOp::kSum).Wait().ok());
  EXPECT_EQ(devices->waits.size(), 0U);
}

}  // namespace
}  // namespace cohort::trainer
