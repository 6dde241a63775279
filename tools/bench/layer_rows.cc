#include "tools/bench/layer_rows.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/group/transport_set.h"
#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/segment/black_box.h"
#include "tools/bench/communicator_rows.h"

namespace cohort::bench {
namespace {

// Messages go nowhere, and zeros arrive at once.
class InstantFanout final : public comm::Fanout {
 public:
  comm::Progress TryPublish(comm::SendOperation&) override { return comm::Progress::kDone; }
  comm::Progress TryRecv(int32_t, comm::RecvOperation& operation) override {
    if (operation.reduce != nullptr) {
      operation.reduce(operation.data, operation.operand, zeros_, operation.bytes / operation.element_bytes);
    } else {
      std::memcpy(operation.data, zeros_, operation.bytes);
    }
    return comm::Progress::kDone;
  }
  size_t max_bytes() const override { return sizeof zeros_; }

 private:
  const std::byte zeros_[8192] = {};
};

class InstantTransport final : public comm::Transport {
 public:
  std::string_view name() const override { return "instant"; }
  bool Reaches(int) const override { return true; }
  absl::StatusOr<std::unique_ptr<comm::Link>> Connect(const comm::LinkSpec&) override {
    return absl::UnimplementedError("publishes only");
  }
  absl::StatusOr<std::unique_ptr<comm::Fanout>> ConnectFanout(const comm::FanoutSpec&) override {
    return std::make_unique<InstantFanout>();
  }
  void OnPeerLost(int, const absl::Status&) override {}
  bool Poll() override { return false; }
  bool Active() const override { return false; }
};

// Keeps the compiler from leaving out what computes `value`.
void Use(uint64_t value) { asm volatile("" : : "r"(value)); }

}  // namespace

Statistics LayersAllReduce(size_t bytes, int calls) {
  return RunPair([=](Side& side) {
    const auto store = MakeStore(side.shared());
    const auto runtime = InitRuntime(*store, side.rank());
    {
      runtime::EngineLock lock(runtime->engine());
      comm::TransportSet::Of(*runtime).Add(std::make_unique<InstantTransport>());
    }
    auto world = comm::Communicator::World(*runtime);
    Require(world.status());
    const auto count = static_cast<int64_t>(bytes / sizeof(float));
    std::vector<float> in(bytes / sizeof(float), 1.0f), out(in.size());
    const auto call = [&] {
      Require(
          (*world)
              ->AllReduce(comm::ConstBuffer(in.data(), count), comm::Buffer(out.data(), count), comm::ReduceOp::kSum)
              .Wait());
    };
    for (int i = 0; i < 100; ++i) call();
    side.TimeBackToBack(calls, call);
    world->reset();
    Require(runtime->Finalize());
  });
}

Statistics SignatureHash(int calls) {
  return RunPair([=](Side& side) {
    runtime::CallSignature signature;
    side.TimeBackToBack(calls, [&] {
      ++signature.sequence;
      Use(runtime::HashSignature(signature));
    });
  });
}

Statistics BlackBoxRecord(int calls) {
  return RunPair([=](Side& side) {
    runtime::CallRecord record;
    std::strcpy(record.site, "train.cc:88");
    runtime::CallDescription description;
    side.TimeBackToBack(calls, [&] {
      ++record.signature.sequence;
      const uint64_t ticket = side.segment.black_box().Start(record, &description);
      side.segment.black_box().Finish(ticket, runtime::CallState::kDone);
    });
  });
}

Statistics ClockRead(int calls) {
  return RunPair([=](Side& side) {
    runtime::FastClock clock;
    side.TimeBackToBack(calls, [&] { Use(clock.Now()); });
  });
}

}  // namespace cohort::bench
