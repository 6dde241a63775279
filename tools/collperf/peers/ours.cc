#include "tools/collperf/peers/ours.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/window.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/runtime.h"
#include "tools/collperf/call.h"
#include "tools/measure/system_rank.h"

namespace cohort::collperf {
namespace {

using measure::SystemCall;

class Ours final : public measure::SystemRank {
 public:
  Ours(runtime::Runtime& runtime, comm::Communicator& group, comm::Communicator& windows_group)
      : runtime_(runtime), private_(group), windows_group_(windows_group) {}
  int rank() const override { return private_.rank(); }
  int ranks() const override { return private_.size(); }
  std::string Run(const SystemCall& wanted) override {
    if (!call_.has_value() || !(wanted == of_)) MakeCall(wanted);
    if (wanted.compute_us <= 0) return std::string(call_->Run(1).message());
    runtime::Work work = call_->Start();
    measure::Compute(wanted.compute_us);
    return std::string(work.Wait().message());
  }
  void* Allocate(int variant, int buffer, int64_t bytes) override {
    if (variant == 0) return SystemRank::Allocate(variant, buffer, bytes);
    auto window = windows_group_.AllocateWindow(static_cast<size_t>(bytes));
    if (!window.ok()) {
      std::fprintf(stderr, "%s\n", std::string(window.status().message()).c_str());
      return nullptr;
    }
    windows_.push_back(std::move(*window));
    return windows_.back().data();
  }
  void Release(int variant) override {
    if (variant == 0) return SystemRank::Release(variant);
    windows_.clear();
  }
  void Progress() override {
    runtime::EngineLock lock(runtime_.engine());
    (void)runtime_.engine().Poll();
  }

 private:
  // A call is kept, as a program keeps its buffers: making it takes as long as a part of a short one.
  void MakeCall(const SystemCall& wanted) {
    auto* const in = reinterpret_cast<char*>(const_cast<float*>(wanted.in));
    auto* const out = reinterpret_cast<char*>(wanted.out);
    call_.emplace(CallSpec{.group = wanted.variant == 0 ? &private_ : &windows_group_,
                           .operation = wanted.operation,
                           .root = wanted.root,
                           .count = wanted.count,
                           .in = {in, in},
                           .out = {out, out},
                           .messages = wanted.messages});
    of_ = wanted;
  }

  runtime::Runtime& runtime_;
  comm::Communicator& private_;
  comm::Communicator& windows_group_;
  std::vector<comm::Window> windows_;
  std::optional<Call> call_;
  SystemCall of_;
};

absl::StatusOr<int> Serve(const std::string& path, int ranks, int slot) {
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<runtime::Runtime> runtime, runtime::Runtime::Init());
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> world, comm::Communicator::World(*runtime));
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> windows_group, world->Duplicate());
  int code = 0;
  {
    Ours system(*runtime, *world, *windows_group);
    code = measure::Serve(system, path, ranks, slot);
  }
  windows_group.reset();
  world.reset();
  COHORT_RETURN_IF_ERROR(runtime->Finalize());
  return code;
}

}  // namespace

int ServeComparison(const std::string& path, int ranks, int slot) {
  const absl::StatusOr<int> code = Serve(path, ranks, slot);
  if (code.ok()) return *code;
  std::fprintf(stderr, "%s\n", std::string(code.status().message()).c_str());
  return 1;
}

}  // namespace cohort::collperf
