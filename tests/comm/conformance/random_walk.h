// A random program: all ranks draw the same one from a seed (collectives, messages, batches, splits, subgroups; waited
// for at once or later, in any order), and every result is compared with the reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/batch.h"
#include "tests/comm/conformance/collective_case.h"

namespace cohort::testing {

// One rank's walk through the program of a seed. What all ranks must draw alike comes from `shared`; whether a rank
// waits now or later from `own`.
class Walk {
 public:
  Walk(comm::Communicator* world, int rank, uint64_t seed)
      : shared_(seed), own_(seed * 31 + static_cast<uint64_t>(rank)) {
    groups_.push_back({world, nullptr, world->members()});
  }

  std::string Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      const uint64_t what = Draw(shared_, 12);
      std::string wrong = what == 0 ? MakeGroup() : what == 1 ? CallBatch(step) : Call(step);
      if (!wrong.empty()) return "step " + std::to_string(step) + ": " + wrong;
      while (!pending_.empty() && (pending_.size() > 5 || Draw(own_, 3) == 0)) {
        if (wrong = FinishOne(); !wrong.empty()) return wrong;
      }
    }
    while (!pending_.empty()) {
      if (std::string wrong = FinishOne(); !wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  struct GroupOf {
    comm::Communicator* communicator;  // null: this rank is no member
    std::unique_ptr<comm::Communicator> owned;
    std::vector<int> members;  // world ranks, by group rank
  };
  struct Pending {
    std::unique_ptr<CollectiveCase> the_case;
    std::unique_ptr<PendingCase> call;
  };

  static uint64_t Draw(std::mt19937_64& random, uint64_t bound) { return random() % bound; }

  std::string FinishOne() {
    const auto chosen = pending_.begin() + static_cast<ptrdiff_t>(Draw(own_, pending_.size()));
    Pending pending = std::move(*chosen);
    pending_.erase(chosen);
    return pending.call->Finish();
  }

  std::string Call(int step) {
    GroupOf& group = groups_[Draw(shared_, groups_.size())];
    auto the_case = DrawCase(group, step, 15);  // up to kSend, then the variable-count forms
    if (the_case == nullptr) return "";
    auto call = std::make_unique<PendingCase>(*group.communicator, *the_case);
    pending_.push_back({std::move(the_case), std::move(call)});
    return "";
  }

  // Many calls as one: mostly small all-reduces, which are gathered.
  std::string CallBatch(int step) {
    GroupOf& group = groups_[Draw(shared_, groups_.size())];
    std::unique_ptr<comm::Batch> batch;
    if (group.communicator != nullptr) batch = std::make_unique<comm::Batch>(*group.communicator);
    const uint64_t calls = 1 + Draw(shared_, 12);
    const size_t first = pending_.size();
    const auto common_op = static_cast<comm::ReduceOp>(1 + Draw(shared_, 4));
    for (uint64_t i = 0; i < calls; ++i) {
      const bool common = Draw(shared_, 2) == 0;
      auto the_case = DrawCase(group, step * 100 + static_cast<int>(i), common ? 1 : 15);
      if (the_case == nullptr || the_case->kind == comm::CollectiveKind::kBarrier) continue;
      if (common) {
        the_case->kind = comm::CollectiveKind::kAllReduce;
        the_case->dtype = comm::DataType::kInt32;
        the_case->op = common_op;
      }
      auto call = std::make_unique<PendingCase>(*group.communicator, *the_case, batch.get());
      pending_.push_back({std::move(the_case), std::move(call)});
    }
    if (batch == nullptr) return "";
    const runtime::Work work = batch->Submit();
    for (size_t i = first; i < pending_.size(); ++i) pending_[i].call->set_work(work);
    return "";
  }

  // A call of one of the first `kinds` kinds; null where this rank takes no part.
  std::unique_ptr<CollectiveCase> DrawCase(GroupOf& group, int step, uint64_t kinds) {
    const uint64_t size = group.members.size();
    auto the_case = std::make_unique<CollectiveCase>();
    const auto kind = static_cast<int>(1 + Draw(shared_, kinds));
    the_case->kind = static_cast<comm::CollectiveKind>(kind <= 10 ? kind : kind + 1);
    the_case->dtype = static_cast<comm::DataType>(1 + Draw(shared_, comm::kDataTypes - 1));
    the_case->op = static_cast<comm::ReduceOp>(1 + Draw(shared_, comm::kReduceOps - 1));
    if (comm::IsBitwise(the_case->op) && comm::IsFloat(the_case->dtype)) the_case->dtype = comm::DataType::kUint16;
    the_case->determinism = static_cast<comm::Determinism>(Draw(shared_, comm::kDeterminismLevels));
    the_case->count = static_cast<int64_t>(Draw(shared_, 3) == 0 ? Draw(shared_, 3000) : Draw(shared_, 40));
    the_case->root = static_cast<int>(Draw(shared_, size));
    the_case->peer = static_cast<int>(
        (static_cast<uint64_t>(the_case->root) + 1 + Draw(shared_, std::max<uint64_t>(1, size - 1))) % size);
    the_case->in_place = Draw(shared_, 2) == 0;
    the_case->salt = static_cast<uint64_t>(step);
    if (group.communicator == nullptr || (the_case->kind == comm::CollectiveKind::kSend && size == 1)) return nullptr;
    return the_case;
  }

  std::string MakeGroup() {
    GroupOf& parent = groups_[Draw(shared_, groups_.size())];
    const bool split = Draw(shared_, 2) == 0;
    const uint64_t colors = 1 + Draw(shared_, 3);
    const uint64_t mine = Draw(shared_, colors);
    std::vector<std::pair<int, uint64_t>> of_rank;  // key, color, by the parent's group rank
    for (size_t i = 0; i < parent.members.size(); ++i) {
      of_rank.emplace_back(static_cast<int>(Draw(shared_, 5)), Draw(shared_, colors));
    }
    // All colors become groups in a split; the program goes on with one of them.
    std::vector<std::pair<int, int>> order;
    for (size_t i = 0; i < of_rank.size(); ++i) {
      if (of_rank[i].second == mine) order.emplace_back(of_rank[i].first, static_cast<int>(i));
    }
    std::sort(order.begin(), order.end());
    std::vector<int> ranks;
    GroupOf made{nullptr, nullptr, {}};
    for (const auto& [key, rank] : order) {
      ranks.push_back(rank);
      made.members.push_back(parent.members[static_cast<size_t>(rank)]);
    }
    if (ranks.empty() || parent.communicator == nullptr) {
      if (!ranks.empty()) groups_.push_back(std::move(made));
      return "";
    }
    const int me = parent.communicator->rank();
    const bool member = of_rank[static_cast<size_t>(me)].second == mine;
    if (split || member) {
      auto result = split ? parent.communicator->Split(static_cast<int>(of_rank[static_cast<size_t>(me)].second),
                                                       of_rank[static_cast<size_t>(me)].first)
                          : parent.communicator->Subgroup(ranks);
      if (!result.ok()) return std::string(result.status().message());
      if (member) {
        made.owned = *std::move(result);
        made.communicator = made.owned.get();
        if (made.communicator->members() != made.members) return "the group has other members than it should";
      }
    }
    groups_.push_back(std::move(made));
    return "";
  }

  std::mt19937_64 shared_;
  std::mt19937_64 own_;
  std::deque<GroupOf> groups_;
  std::deque<Pending> pending_;
};

}  // namespace cohort::testing
