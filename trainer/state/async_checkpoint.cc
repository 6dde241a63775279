#include "cohort/trainer/state/async_checkpoint.h"

#include <cstdio>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// A copy, on the CPU, of what this rank will write.
std::vector<CheckpointTensor> Snapshot(const std::vector<CheckpointTensor>& tensors) {
  std::vector<CheckpointTensor> copies;
  for (const CheckpointTensor& tensor : tensors) {
    CheckLength(tensor);
    const int64_t count = tensor.end - tensor.begin;
    const int64_t begin = count * tensor.replica / tensor.replicas;
    const int64_t end = count * (tensor.replica + 1) / tensor.replicas;
    if (begin == end && (count > 0 || tensor.replica > 0)) continue;
    const at::Tensor mine = tensor.data.detach().reshape({-1}).narrow(0, begin, end - begin);
    copies.push_back({.name = tensor.name,
                      .sizes = tensor.sizes,
                      .begin = tensor.begin + begin,
                      .end = tensor.begin + end,
                      .data = mine.to(at::kCPU, mine.scalar_type(), /*non_blocking=*/false, /*copy=*/true)});
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
  std::vector<CheckpointTensor> copies;
  CheckpointValues all;
  const auto copy = [&] {
    copies = Snapshot(CheckpointTensorsOf(world_, state));
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
