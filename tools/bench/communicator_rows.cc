#include "tools/bench/communicator_rows.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/runtime.h"

namespace cohort::bench {
namespace {

class SharedStore : public runtime::KeyValueStore {
 public:
  explicit SharedStore(SharedState& shared) : shared_(shared) {}

  absl::Status Put(std::string_view key, std::string_view value) override {
    for (SharedState::Entry& entry : shared_.entries) {
      if (key.size() >= sizeof entry.key || value.size() > sizeof entry.value) break;
      uint32_t free = 0;
      if (!entry.state.compare_exchange_strong(free, 1)) continue;
      std::memcpy(entry.key, key.data(), key.size());
      std::memcpy(entry.value, value.data(), value.size());
      entry.bytes = static_cast<uint32_t>(value.size());
      entry.state.store(2, std::memory_order_release);
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError("the benchmark's store is too small");
  }

  absl::StatusOr<std::string> Get(std::string_view key, runtime::Deadline deadline) override {
    do {
      for (const SharedState::Entry& entry : shared_.entries) {
        if (entry.state.load(std::memory_order_acquire) != 2 || key != entry.key) continue;
        return std::string(entry.value, entry.bytes);
      }
      sched_yield();
    } while (!deadline.passed());
    return absl::DeadlineExceededError("nobody has put " + std::string(key));
  }

 private:
  SharedState& shared_;
};

}  // namespace

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "benchmark: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

std::unique_ptr<runtime::KeyValueStore> MakeStore(SharedState& shared) { return std::make_unique<SharedStore>(shared); }

std::unique_ptr<runtime::Runtime> InitRuntime(runtime::KeyValueStore& store, int rank) {
  runtime::RuntimeOptions options;
  options.bootstrap = runtime::BootstrapFromStore(&store, rank, 2);
  auto runtime = runtime::Runtime::Init(std::move(options));
  Require(runtime.status());
  return *std::move(runtime);
}

namespace {

// A rank's runtime and the communicator of all.
class World {
 public:
  explicit World(Side& side) : store_(MakeStore(side.shared())), runtime_(InitRuntime(*store_, side.rank())) {
    auto world = comm::Communicator::World(*runtime_);
    Require(world.status());
    communicator_ = *std::move(world);
  }
  void End() {
    communicator_.reset();
    Require(runtime_->Finalize());
  }
  comm::Communicator& communicator() { return *communicator_; }

 private:
  std::unique_ptr<runtime::KeyValueStore> store_;
  std::unique_ptr<runtime::Runtime> runtime_;
  std::unique_ptr<comm::Communicator> communicator_;
};

comm::Work Start(comm::Communicator& world, const CollectiveRow& row, float* in, float* out) {
  using comm::CollectiveKind;
  const auto count = static_cast<int64_t>(row.bytes / sizeof(float));
  const comm::BufferBlocks blocks = comm::BlocksOf(row.kind, world.rank() == 0, world.size());
  const comm::ConstBuffer source(in, count * blocks.in);
  const comm::Buffer target(out, count * blocks.out);
  comm::CallOptions options;
  options.algorithm = row.algorithm;
  switch (row.kind) {
    case CollectiveKind::kBroadcast:
      return world.Broadcast(target, 0, options);
    case CollectiveKind::kReduce:
      return world.Reduce(source, target, comm::ReduceOp::kSum, 0, options);
    case CollectiveKind::kAllReduce:
      return world.AllReduce(source, target, comm::ReduceOp::kSum, options);
    case CollectiveKind::kGather:
      return world.Gather(source, target, 0, options);
    case CollectiveKind::kScatter:
      return world.Scatter(source, target, 0, options);
    case CollectiveKind::kAllGather:
      return world.AllGather(source, target, options);
    case CollectiveKind::kReduceScatter:
      return world.ReduceScatter(source, target, comm::ReduceOp::kSum, options);
    case CollectiveKind::kAllToAll:
      return world.AllToAll(source, target, options);
    default:
      return world.Barrier(options);
  }
}

}  // namespace

Statistics MeasureCollective(const CollectiveRow& row) {
  return RunPair([&row](Side& side) {
    World world(side);
    comm::Window window;
    std::vector<std::byte> memory;
    const size_t room = 2 * row.bytes;  // of either buffer: two blocks at the most
    std::byte* base = nullptr;
    if (row.window) {
      auto made = world.communicator().AllocateWindow(2 * room);
      Require(made.status());
      window = *std::move(made);
      base = static_cast<std::byte*>(window.data());
    } else {
      memory.resize(2 * room);
      base = memory.data();
    }
    auto* in = reinterpret_cast<float*>(base);
    const bool own_block = row.kind == comm::CollectiveKind::kAllGather || row.kind == comm::CollectiveKind::kGather;
    const bool own_part =
        row.kind == comm::CollectiveKind::kReduceScatter || row.kind == comm::CollectiveKind::kScatter;
    const size_t count = row.bytes / sizeof(float);
    const size_t rank = static_cast<size_t>(side.rank());
    float* out = row.in_place ? in + (own_part ? rank * count : 0) : reinterpret_cast<float*>(base + room);
    if (row.in_place && own_block) in += rank * count;
    const size_t inputs =
        count * static_cast<size_t>(comm::BlocksOf(row.kind, side.rank() == 0, world.communicator().size()).in);
    std::fill(in, in + inputs, 1.0f);
    for (int i = 0; i < row.calls + 3; ++i) {
      if (row.fresh) std::fill(in, in + inputs, static_cast<float>(i));
      side.Gate();
      const uint64_t begin = Ticks();
      Require(Start(world.communicator(), row, in, out).Wait());
      if (i >= 3) side.Record(Ticks() - begin);
    }
    side.Gate();
    window = comm::Window();
    world.End();
  });
}

Statistics CommunicatorAllReduce(size_t bytes, bool gated, int calls) {
  return RunPair([=](Side& side) {
    World world(side);
    const size_t count = bytes / sizeof(float);
    std::vector<float> in(count, 1.0f), out(count);
    const auto call = [&] {
      Require(world.communicator()
                  .AllReduce(comm::ConstBuffer(in.data(), static_cast<int64_t>(count)),
                             comm::Buffer(out.data(), static_cast<int64_t>(count)), comm::ReduceOp::kSum)
                  .Wait());
    };
    for (int i = 0; i < 100; ++i) call();
    if (gated) {
      side.TimeGated(calls, call);
    } else {
      side.TimeBackToBack(calls, call);
    }
    world.End();
  });
}

}  // namespace cohort::bench
