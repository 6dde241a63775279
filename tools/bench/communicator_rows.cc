#include "tools/bench/communicator_rows.h"

#include <sched.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "runtime/bootstrap.h"
#include "runtime/runtime.h"

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

Statistics CommunicatorAllReduce(size_t bytes, bool gated, int calls) {
  return RunPair([=](Side& side) {
    const auto store = MakeStore(side.shared());
    const auto runtime = InitRuntime(*store, side.rank());
    auto world = comm::Communicator::World(*runtime);
    Require(world.status());
    const size_t count = bytes / sizeof(float);
    std::vector<float> in(count, 1.0f), out(count);
    const auto call = [&] {
      Require((*world)
                  ->AllReduce(comm::ConstBuffer(in.data(), static_cast<int64_t>(count)),
                              comm::Buffer(out.data(), static_cast<int64_t>(count)), comm::ReduceOp::kSum)
                  .Wait());
    };
    for (int i = 0; i < 100; ++i) call();
    if (gated) {
      side.TimeGated(calls, call);
    } else {
      side.TimeBackToBack(calls, call);
    }
    world->reset();
    Require(runtime->Finalize());
  });
}

}  // namespace cohort::bench
