#include "cohort/trainer/state/async_checkpoint.h"

#include <cstdio>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/runtime/ranges.h"
#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// A copy, on the CPU, of what this rank will write.
std::vector<CheckpointTensor> Snapshot(const std::vector<CheckpointTensor>& tensors) {
  std::vector<CheckpointTensor> copies;
  for (CheckpointTensor& part : OwnParts(tensors)) {
    part.data = part.data.to(at::kCPU, part.data.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    copies.push_back(std::move(part));
  }
  return copies;
}

}  // namespace

struct AsyncCheckpointer::Writer {
  std::exception_ptr error;
  std::thread thread;
};

AsyncCheckpointer::AsyncCheckpointer(comm::Communicator& world, std::chrono::nanoseconds timeout)
    : world_(world), timeout_(timeout) {
  auto group = world.Duplicate();
  ThrowUnlessOk(group.status(), "making the communicator of AsyncCheckpointer");
  group_ = *std::move(group);
}

AsyncCheckpointer::~AsyncCheckpointer() {
  try {
    Wait();
  } catch (...) {
    std::fprintf(stderr, "AsyncCheckpointer: nobody asked for the last checkpoint, which failed: %s\n",
                 TextOfCaught().c_str());
  }
}

void AsyncCheckpointer::Save(const std::string& directory, const TrainingState& state, const CheckpointValues& values) {
  Wait();
  const runtime::Range shown("copy for " + directory, runtime::RangeLane::kCheckpoints);
  std::vector<CheckpointTensor> copies;
  CheckpointValues all;
  const auto copy = [&] {
    copies = Snapshot(CheckpointTensorsOf(state));
    all = CheckpointValuesOf(state, values);
  };
  TogetherOrNot(*group_, "saving checkpoint " + directory, copy, timeout_);  // or the others would wait for who can't
  auto writer = std::make_unique<Writer>();
  writer->thread = std::thread([this, own = writer.get(), directory, tensors = std::move(copies), all] {
    try {
      SaveCheckpoint(*group_, directory, tensors, all, timeout_);
    } catch (...) {
      own->error = std::current_exception();
    }
  });
  writer_ = std::move(writer);
}

void AsyncCheckpointer::Wait() {
  if (writer_ == nullptr) return;
  writer_->thread.join();
  const std::unique_ptr<Writer> writer = std::move(writer_);
  if (writer->error != nullptr) std::rethrow_exception(writer->error);
}

}  // namespace cohort::trainer
