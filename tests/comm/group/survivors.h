// A running mix of collectives in which a rank dies, and what its survivors do about it.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"

namespace cohort::testing {

// Meets the others again and again, until the group has failed; its error.
inline absl::Status AwaitFailure(comm::Communicator& group) {
  absl::Status status;
  while (status.ok()) status = group.Barrier().Wait();
  return status;
}

class Survivors {
 public:
  // All ranks draw the same mix from `seed`. The caller kills itself at its operation number `dies_at`; -1: never.
  Survivors(comm::Communicator* group, uint64_t seed, int dies_at) : group_(group), random_(seed), dies_at_(dies_at) {}

  comm::Communicator* group() { return shrunk_ != nullptr ? shrunk_.get() : group_; }

  // Computes until a rank is lost, shrinks, and computes on. "" or what is wrong.
  std::string LoseOne() {
    const int before = group_->size();
    absl::Status status;
    std::string wrong;
    for (int i = 0; status.ok() && i < 100000; ++i) {
      status = Operation(*group_, i == dies_at_, &wrong);
      if (!wrong.empty()) return wrong;
    }
    if (!absl::IsUnavailable(status)) return "not kUnavailable: " + status.ToString();
    auto shrunk = group_->Shrink();
    if (!shrunk.ok()) return shrunk.status().ToString();
    if ((*shrunk)->size() != before - 1) return std::to_string((*shrunk)->size()) + " ranks are left";
    if (!absl::IsUnavailable(group_->Barrier().Wait())) return "the old group works again";
    shrunk_ = *std::move(shrunk);
    random_.seed(static_cast<uint64_t>(before));
    return Compute(40);
  }

  // Computes, and shrinks whenever a rank is lost, until `target` ranks are left and have computed on: for ranks that
  // are killed from outside, at any moment, several at once or during a shrink. `tell` hears what is being done.
  std::string GoOnUntil(int target, const std::function<void(const char*)>& tell) {
    std::string wrong;
    for (int i = 0; group()->size() > target; ++i) {
      const absl::Status status = Operation(*group(), false, &wrong);
      if (!wrong.empty()) return wrong;
      if (i == 10) tell("ready");
      if (status.ok()) continue;
      if (!absl::IsUnavailable(status)) return "not kUnavailable: " + status.ToString();
      tell("shrinking");
      auto shrunk = group()->Shrink();
      if (!shrunk.ok()) return shrunk.status().ToString();
      if ((*shrunk)->size() >= group()->size()) return "the shrunk group is no smaller";
      if (!absl::IsUnavailable(group()->Barrier().Wait())) return "the old group works again";
      shrunk_ = *std::move(shrunk);
      random_.seed(shrunk_->id());  // the members failed at different operations
    }
    return group()->size() == target ? Compute(40) : std::to_string(group()->size()) + " ranks are left";
  }

  // `operations` operations, all of which must be right.
  std::string Compute(int operations) {
    std::string wrong;
    for (int i = 0; i < operations && wrong.empty(); ++i) {
      const absl::Status status = Operation(*group(), false, &wrong);
      if (!status.ok()) return "after the shrink: " + status.ToString();
    }
    return wrong;
  }

 private:
  absl::Status Operation(comm::Communicator& group, bool die, std::string* wrong) {
    const int size = group.size();
    const int rank = group.rank();
    const auto count = static_cast<int64_t>(random_() % 3 == 0 ? random_() % 60000 : random_() % 50);
    const auto all = static_cast<size_t>(count * size);
    const uint64_t kind = random_() % 4;
    std::vector<int64_t> in(kind == 2 ? all : static_cast<size_t>(count), rank + 1);
    std::vector<int64_t> out(kind == 0 ? static_cast<size_t>(count) : all);
    const comm::ConstBuffer source(in.data(), static_cast<int64_t>(in.size()));
    const comm::Buffer target(out.data(), static_cast<int64_t>(out.size()));
    comm::Work work;
    switch (kind) {
      case 0:
        work = group.AllReduce(source, target, comm::ReduceOp::kSum);
        break;
      case 1:
        work = group.AllGather(source, target);
        break;
      case 2:
        work = group.AllToAll(source, target);
        break;
      default:
        work = group.Barrier();
    }
    if (die) kill(getpid(), SIGKILL);
    const absl::Status status = work.Wait(std::chrono::seconds(30));
    if (!status.ok() || kind == 3) return status;
    for (size_t i = 0; i < out.size() && wrong->empty(); ++i) {
      const int64_t from = kind == 0 ? size * (size + 1) / 2 : static_cast<int64_t>(i) / count + 1;
      if (out[i] != from) *wrong = "operation " + std::to_string(kind) + ": element " + std::to_string(i) + " is wrong";
    }
    return status;
  }

  comm::Communicator* const group_;
  std::unique_ptr<comm::Communicator> shrunk_;
  std::mt19937_64 random_;
  const int dies_at_;
};

}  // namespace cohort::testing
