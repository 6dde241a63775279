// A rank of ours in a comparison: variant 0 is private memory, variant 1 window memory, each on a group of its own, as
// Communicator::AllocateWindow advises.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/window.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/runtime.h"
#include "tools/bench/compare/system.h"

namespace cohort::bench {
namespace {

using comm::Buffer;
using comm::ConstBuffer;
using comm::ReduceOp;
using measure::Operation;

class Cohort final : public System {
 public:
  Cohort(runtime::Runtime& runtime, comm::Communicator& group, comm::Communicator& windows_group)
      : runtime_(runtime), private_(group), windows_group_(windows_group) {}
  int rank() const override { return private_.rank(); }
  int ranks() const override { return private_.size(); }
  std::string Run(const SystemCall& call) override {
    if (call.operation == Operation::kSendRecv) return Exchange(call);
    runtime::Work work = Start(call);
    if (call.compute_us > 0) Compute(call.compute_us);
    return std::string(work.Wait().message());
  }
  void* Allocate(int variant, int buffer, int64_t bytes) override {
    if (variant == 0) return System::Allocate(variant, buffer, bytes);
    auto window = windows_group_.AllocateWindow(static_cast<size_t>(bytes));
    if (!window.ok()) {
      std::fprintf(stderr, "%s\n", std::string(window.status().message()).c_str());
      return nullptr;
    }
    windows_.push_back(std::move(*window));
    return windows_.back().data();
  }
  void Release(int variant) override {
    if (variant == 0) return System::Release(variant);
    windows_.clear();
  }
  void Progress() override {
    runtime::EngineLock lock(runtime_.engine());
    (void)runtime_.engine().Poll();
  }

 private:
  comm::Communicator& GroupOf(const SystemCall& call) { return call.variant == 0 ? private_ : windows_group_; }

  std::string Exchange(const SystemCall& call) {
    comm::Communicator& group = GroupOf(call);
    std::vector<runtime::Work> works;
    for (int i = 0; i < call.messages; ++i) {
      works.push_back(group.Recv(Buffer(call.out, call.count), (rank() + ranks() - 1) % ranks()));
      works.push_back(group.Send(ConstBuffer(call.in, call.count), (rank() + 1) % ranks()));
    }
    absl::Status first;
    for (runtime::Work& work : works) first.Update(work.Wait());
    return std::string(first.message());
  }

  runtime::Work Start(const SystemCall& call) {
    const measure::Blocks blocks = measure::BlocksOf(call.operation, rank() == call.root, ranks());
    const ConstBuffer in(call.in, blocks.in * call.count);
    const Buffer out(call.out, blocks.out * call.count);
    comm::Communicator& group = GroupOf(call);
    switch (call.operation) {
      case Operation::kBroadcast:
        return group.Broadcast(Buffer(call.out != nullptr ? call.out : const_cast<float*>(call.in), call.count),
                               call.root);
      case Operation::kReduce:
        return group.Reduce(in, out, ReduceOp::kSum, call.root);
      case Operation::kAllReduce:
        return group.AllReduce(in, out, ReduceOp::kSum);
      case Operation::kGather:
        return group.Gather(in, out, call.root);
      case Operation::kScatter:
        return group.Scatter(in, out, call.root);
      case Operation::kAllGather:
        return group.AllGather(in, out);
      case Operation::kReduceScatter:
        return group.ReduceScatter(in, out, ReduceOp::kSum);
      case Operation::kAllToAll:
        return group.AllToAll(in, out);
      case Operation::kSendRecv:
      case Operation::kBarrier:
        break;
    }
    return group.Barrier();
  }

  runtime::Runtime& runtime_;
  comm::Communicator& private_;
  comm::Communicator& windows_group_;
  std::vector<comm::Window> windows_;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

int Main(int argc, char** argv) {
  if (argc != 4) return 2;
  auto runtime = runtime::Runtime::Init();
  if (!runtime.ok()) return Fail(runtime.status());
  auto world = comm::Communicator::World(**runtime);
  if (!world.ok()) return Fail(world.status());
  auto windows_group = (*world)->Duplicate();
  if (!windows_group.ok()) return Fail(windows_group.status());
  int code = 0;
  {
    Cohort system(**runtime, **world, **windows_group);
    code = Serve(system, argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
  }
  windows_group->reset();
  world->reset();
  const absl::Status end = (*runtime)->Finalize();
  return end.ok() ? code : Fail(end);
}

}  // namespace
}  // namespace cohort::bench

// cohort_rank SESSION RANKS PLACE
int main(int argc, char** argv) { return cohort::bench::Main(argc, argv); }
