// Memory that StoragePool hands out and keeps, counted by an allocator of the test's.
#include "cohort/trainer/transfer/storage_pool.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// A device that some other library may bring: it has a current index, as CUDA has.
constexpr auto kDevice = c10::DeviceType::PrivateUse1;
c10::DeviceIndex current_index = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    current_index = device.index();
    return before;
  }
  c10::Device getDevice() const override { return {kDevice, current_index}; }
  void setDevice(c10::Device device) const override { current_index = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_index = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};
const c10::impl::DeviceGuardImplRegistrar registrar(kDevice, new Guard);

int64_t allocations = 0;
std::map<void*, size_t> blocks;  // that are not freed yet

void Free(void* block) {
  blocks.erase(block);
  std::free(block);
}

// The allocator of the CPU, or of the current index of the other device. (libtorch 2.x calls the second allocate, and
// has copy_data.)
struct Counting final : c10::Allocator {
  explicit Counting(c10::DeviceType device) : device_type(device) {}
  c10::DataPtr allocate(size_t bytes) const {
    void* block = std::malloc(bytes);
    ++allocations;
    blocks[block] = bytes;
    return {block, block, &Free,
            c10::Device(device_type, device_type == kDevice ? current_index : c10::DeviceIndex{-1})};
  }
  c10::DataPtr allocate(size_t bytes) { return std::as_const(*this).allocate(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  c10::DeviceType device_type;
};

class StoragePoolTest : public testing::Test {
 protected:
  StoragePoolTest() { allocations = 0; }
  ~StoragePoolTest() override { EXPECT_TRUE(blocks.empty()); }
  static at::Tensor Make(Counting& allocator, c10::Device device, int64_t bytes) {
    c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), &allocator,
                         /*resizable=*/true);
    const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                           caffe2::TypeMeta::Make<uint8_t>());
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
    return tensor;
  }
  static size_t Held() {
    size_t bytes = 0;
    for (const auto& [block, size] : blocks) bytes += size;
    return bytes;
  }
  Counting host_{c10::kCPU}, device_{kDevice};
};

TEST_F(StoragePoolTest, KeepsTwiceTheLargestAtMost) {
  StoragePool pool;
  std::vector<at::Tensor> tensors;
  for (int64_t size = 100; size <= 1000; size += 100) {
    for (int i = 0; i < 3; ++i) tensors.push_back(Make(host_, c10::kCPU, size));
  }
  for (const at::Tensor& tensor : tensors) pool.Attach(tensor);
  for (const at::Tensor& tensor : tensors) pool.Detach(tensor);
  EXPECT_LE(Held(), 2000U);
  EXPECT_GT(Held(), 0U);
}

TEST_F(StoragePoolTest, GivesABlockAgain) {
  StoragePool pool;
  const at::Tensor first = Make(host_, c10::kCPU, 100), second = Make(host_, c10::kCPU, 100);
  for (int step = 0; step < 3; ++step) {
    pool.Attach(first);
    pool.Attach(second);
    EXPECT_TRUE(StoragePool::HasMemory(first));
    EXPECT_NE(first.data_ptr(), second.data_ptr());
    pool.Detach(first);
    pool.Detach(second);
    EXPECT_FALSE(StoragePool::HasMemory(first));
  }
  EXPECT_EQ(allocations, 2);
}

// Small ones that came first leave no less room.
TEST_F(StoragePoolTest, KeepsWhatWasReleasedLast) {
  StoragePool pool;
  std::vector<at::Tensor> small;
  for (int i = 0; i < 30; ++i) small.push_back(Make(host_, c10::kCPU, 100 + i));
  const at::Tensor large = Make(host_, c10::kCPU, 1000);
  pool.Attach(large);
  for (const at::Tensor& tensor : small) pool.Attach(tensor);
  for (const at::Tensor& tensor : small) pool.Detach(tensor);
  pool.Detach(large);
  EXPECT_LE(Held(), 2000U);
  allocations = 0;
  pool.Attach(large);
  EXPECT_EQ(allocations, 0);
  pool.Detach(large);
}

TEST_F(StoragePoolTest, KeepsNoMemoryOfDevices) {
  StoragePool pool;
  const at::Tensor tensor = Make(device_, {kDevice, 0}, 100);
  pool.Attach(tensor);
  pool.Detach(tensor);
  EXPECT_EQ(Held(), 0U);
}

TEST_F(StoragePoolTest, AllocatesOnTheTensorsDevice) {
  StoragePool pool;
  const at::Tensor tensor = Make(device_, {kDevice, 1}, 100);
  pool.Attach(tensor);
  EXPECT_EQ(tensor.storage().data_ptr().device(), c10::Device(kDevice, 1));
  EXPECT_EQ(current_index, 0);
  pool.Detach(tensor);
}

}  // namespace
}  // namespace cohort::trainer
