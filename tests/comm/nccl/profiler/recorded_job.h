// Ranks of one node in this process, whose calls are recorded, and the job's store between them.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/nccl/profiler/nccl_recorder.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::nccl_profiler {

struct Store {
  std::map<std::string, std::string> values;
  std::map<std::string, std::string> variables;
  bool full = false;
  int late_answers = 0;  // the number of answers that come after the deadline, though what was asked for is done
};

// Nothing in it waits: what is not there is not found.
class StoreBootstrap final : public runtime::Bootstrap {
 public:
  struct Stall {
    uint64_t group = 0;
    uint64_t sequence = 0;  // 0: a message
    std::vector<int> members;
    bool expired = false;
  };

  explicit StoreBootstrap(Store* store) : store_(*store) {}

  absl::StatusOr<Joined> Join(runtime::Deadline /*deadline*/) override { return absl::UnimplementedError(""); }
  absl::Status Put(std::string_view key, std::string_view value, runtime::Deadline /*deadline*/) override {
    store_.values.emplace(key, value);
    return IsLate() ? absl::DeadlineExceededError("late") : absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(std::string_view key, runtime::Deadline /*deadline*/) override {
    if (IsLate()) return absl::DeadlineExceededError("late");
    const auto found = store_.values.find(std::string(key));
    if (found == store_.values.end()) return absl::NotFoundError("");
    return found->second;
  }
  absl::StatusOr<runtime::VariableResult> CallVariable(const runtime::VariableCall& call,
                                                       runtime::Deadline /*deadline*/) override {
    using Kind = runtime::VariableCall::Kind;
    if (call.kind == Kind::kSet && store_.full) return absl::InvalidArgumentError("full");
    if (call.kind == Kind::kSet) store_.variables[call.key] = call.value;
    const auto found = store_.variables.find(call.key);
    if (IsLate()) return absl::DeadlineExceededError("late");
    if (found == store_.variables.end()) return absl::NotFoundError("");
    runtime::VariableResult result{true, found->second, 0};
    if (call.kind == Kind::kDelete) store_.variables.erase(found);
    return result;
  }
  bool Poll(runtime::BootstrapListener& /*listener*/) override { return false; }
  void ReportStall(uint64_t group, uint64_t /*epoch*/, uint64_t sequence, const runtime::RankSet& members,
                   bool expired) override {
    stalls.push_back({group, sequence, members.ranks, expired});
  }
  void ReportWait(uint64_t group, uint64_t /*epoch*/, const runtime::RankSet& members) override {
    stalls.push_back({group, 0, members.ranks, false});
  }
  void ReportGroupFailure(const runtime::GroupFailure& /*failure*/) override {}
  void Goodbye() override {}

  std::vector<Stall> stalls;

 private:
  bool IsLate() { return store_.late_answers > 0 && store_.late_answers-- > 0; }

  Store& store_;
};

// One of them, of `world_size`.
struct RecordedRank {
  RecordedRank(runtime::Segment* agent, Store* store, int rank, int world_size)
      : segment(*runtime::Segment::Attach(dup(agent->fd()), rank, runtime::Segment::Role::kRecorder)),
        recorder(segment.get(), 1),
        bootstrap(store) {
    identity.rank = rank;
    identity.world_size = world_size;
  }

  std::unique_ptr<runtime::Segment> segment;
  NcclRecorder recorder;
  StoreBootstrap bootstrap;
  runtime::Identity identity;
};

}  // namespace cohort::comm::nccl_profiler
