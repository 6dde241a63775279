// Device groups of a job whose ranks own several devices: dlaunch --simulate-gpus 4 --gpus-per-rank 2 <this>. The
// groups' operations overlap, begun in an order of each rank's own.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

std::string Run(comm::Communicator& world, int devices) {
  if (devices != 2) return "there are " + std::to_string(devices) + " devices, not 2";
  if (world.DeviceGroup(devices).ok()) return "there is a group of a device that no rank owns";
  std::vector<std::unique_ptr<comm::Communicator>> groups;
  for (int i = 0; i < devices; ++i) {
    auto group = world.DeviceGroup(i);
    if (!group.ok()) return group.status().ToString();
    if ((*group)->members() != world.members()) return "a device group has other members";
    groups.push_back(*std::move(group));
  }
  std::vector<int64_t> sums(static_cast<size_t>(devices));
  std::vector<comm::Work> works;
  for (int i = 0; i < devices; ++i) {
    const int device = (i + world.rank()) % devices;
    int64_t& sum = sums[static_cast<size_t>(device)];
    sum = 100 * device + world.rank();
    works.push_back(groups[static_cast<size_t>(device)]->AllReduce(comm::Buffer(&sum, 1), comm::Buffer(&sum, 1),
                                                                   comm::ReduceOp::kSum));
  }
  for (comm::Work& work : works) {
    if (const absl::Status status = work.Wait(); !status.ok()) return status.ToString();
  }
  const int64_t ranks = int64_t{world.size()} * (world.size() - 1) / 2;
  for (int device = 0; device < devices; ++device) {
    if (sums[static_cast<size_t>(device)] != ranks + int64_t{100} * device * world.size()) return "a sum is wrong";
  }
  return "";
}

int Main() {
  auto runtime = runtime::Runtime::Init();
  if (!runtime.ok()) {
    std::fprintf(stderr, "init: %s\n", runtime.status().ToString().c_str());
    return 1;
  }
  auto world = comm::Communicator::World(**runtime);
  const std::string wrong =
      world.ok() ? Run(**world, (*runtime)->identity().devices_per_rank) : world.status().ToString();
  if (!wrong.empty()) std::fprintf(stderr, "wrong: %s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace cohort

int main() { return cohort::Main(); }
