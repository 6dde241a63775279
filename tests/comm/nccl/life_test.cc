// The life of a device's part in a group: fresh, preparing, ready, stopping, stopped.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/nccl/device_life.h"
#include "cohort/comm/nccl/library/nccl_api.h"
#include "cohort/comm/nccl/nccl_device.h"
#include "cohort/runtime/engine/engine.h"
#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm::nccl {
namespace {

using runtime::Deadline;
using std::chrono::seconds;

// One device of a rank, in a group of `size` ranks.
class Device {
 public:
  Device(NcclRank& self, int size) : engine_(self.runtime().engine()) {
    group_.id = 78;
    group_.epoch = 1;
    group_.rank = size == 1 ? 0 : self.rank();
    group_.size = size;
    for (int rank = 0; rank < size; ++rank) group_.members.push_back(rank);
    group_.runtime = &self.runtime();
    context_.group = &group_;
    context_.nccl = *LoadNccl(COHORT_FAKE_NCCL);
    context_.cuda = *cuda::LoadCuda(COHORT_FAKE_NCCL);
    context_.pool = NcclPool::Of(self.runtime());
    context_.drive = [this](const std::function<bool()>& done, Deadline deadline, const std::string& doing) {
      seen_.insert(device_->life());
      if (fails_) device_->Stop();
      if (fails_) return absl::CancelledError("the group has failed");
      const bool ended = engine_.DriveUntil([&done] { return done(); }, deadline);
      return ended ? absl::OkStatus() : absl::DeadlineExceededError(doing);
    };
    context_.drive_on = [this](Deadline deadline, const std::string& doing) {
      return context_.drive([deadline] { return true; }, deadline, doing);
    };
    device_ = std::make_unique<NcclDevice>(&context_, 0, 0);
  }

  absl::Status Prepare() {
    const runtime::EngineLock lock(engine_);
    return device_->Prepare(Deadline::After(seconds(20)));
  }
  // Prepares while the group fails.
  absl::Status PrepareInVain() {
    fails_ = true;
    return Prepare();
  }
  void AwaitStopped() {
    while (!device_->Stopped()) std::this_thread::yield();
  }
  bool WasSeen(DeviceLife life) const { return seen_.count(life) > 0; }
  NcclDevice* operator->() { return device_.get(); }

 private:
  runtime::Engine& engine_;
  GroupContext group_;
  NcclContext context_;
  std::unique_ptr<NcclDevice> device_;
  std::set<DeviceLife> seen_;  // while the engine was driven
  bool fails_ = false;
};

TEST(DeviceLife, OnlyTheListedTransitionsAreLegal) {
  using enum DeviceLife;
  const std::set<std::pair<DeviceLife, DeviceLife>> legal = {
      {kFresh, kPreparing}, {kPreparing, kReady}, {kPreparing, kStopping}, {kPreparing, kStopped},
      {kReady, kStopping},  {kReady, kStopped},   {kStopping, kStopped},
  };
  const DeviceLife all[] = {kFresh, kPreparing, kReady, kStopping, kStopped};
  for (const DeviceLife from : all) {
    for (const DeviceLife to : all) EXPECT_EQ(MayFollow(from, to), legal.count({from, to}) > 0);
  }
}

TEST(DeviceLife, GoesFromFreshToStopped) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Device device(self, 2);
    if (device->life() != DeviceLife::kFresh || !device->Stopped()) return "it is not fresh";
    device->Stop();
    if (device->life() != DeviceLife::kFresh) return "what was never used is stopped";
    if (const absl::Status status = device.Prepare(); !status.ok()) return status.ToString();
    if (!device.WasSeen(DeviceLife::kPreparing)) return "it was not preparing while it waited";
    if (device->life() != DeviceLife::kReady || device->Stopped()) return "it is not ready";
    device->Stop();
    device->Stop();
    if (device->life() == DeviceLife::kReady) return "it goes on";
    device.AwaitStopped();
    return device->life() == DeviceLife::kStopped ? "" : "it is not stopped";
  }));
}

TEST(DeviceLife, StopsWhileItsCommunicatorIsAwaited) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Device device(self, 2);
    if (!absl::IsCancelled(device.PrepareInVain())) return "it was prepared";
    return device->life() == DeviceLife::kStopped && device->Stopped() ? "" : "it is not stopped";
  }));
}

TEST(DeviceLife, StopsAtOnceWithoutACommunicator) {
  ExpectNoProblem(RunNcclRanks(1, [](NcclRank& self) -> std::string {
    Device device(self, 1);
    if (!device.Prepare().ok() || device->life() != DeviceLife::kReady) return "it is not ready";
    device->Stop();
    return device->life() == DeviceLife::kStopped ? "" : "it is not stopped";
  }));
}

TEST(DeviceLifeDeathTest, ASecondPrepareIsCaught) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto prepare_twice = [](NcclRank& self) -> std::string {
    Device device(self, 1);
    (void)device.Prepare();
    (void)device.Prepare();
    return "";
  };
  EXPECT_DEATH((void)RunNcclRanks(1, prepare_twice), "MayFollow");
}

}  // namespace
}  // namespace cohort::comm::nccl
