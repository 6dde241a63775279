// Runs plans on numbers in real memory, in a random order of events: the checker's counterpart that shares no code with
// it. In place is real here: the two buffers are the same memory. Receives happen before their turn now and then, as
// early as MarkEarlyReceives allows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/comm/plan/plan.h"
#include "cohort/comm/run/early_receives.h"

namespace cohort::comm {

// The numbers of one call: what goes in and what must come out, for blocks of `count` elements; unequal blocks have
// between none and `count`.
class NumericRun {
 public:
  NumericRun(const std::vector<Plan>& plans, int64_t count, uint64_t seed)
      : plans_(plans), count_(count), random_(seed) {
    for (Plan& plan : plans_) MarkEarlyReceives(&plan);
    for (const Plan& plan : plans_) ranks_.push_back(MakeRank(plan));
  }

  // "" when every output is right; else what went wrong.
  std::string Run() {
    while (true) {
      std::vector<std::pair<size_t, size_t>> order;
      for (size_t r = 0; r < plans_.size(); ++r) {
        for (size_t l = 0; l < plans_[r].lanes.size(); ++l) {
          if (ranks_[r].next[l] < plans_[r].lanes[l].steps.size()) order.emplace_back(r, l);
        }
      }
      if (order.empty()) return CheckOutputs();
      std::shuffle(order.begin(), order.end(), random_);
      bool moved = false;
      for (const auto& [rank, lane] : order) {
        // Some sends get their data away at once, some only when the receiver takes them.
        for (Message* message : ranks_[rank].posted[lane]) {
          if (!message->taken && random_() % 4 == 0) Take(message);
        }
        moved |= TryEarly(rank, lane);
        size_t& next = ranks_[rank].next[lane];
        const bool came_early = ranks_[rank].early[lane].erase(next) > 0;
        if (!came_early && !TryStep(rank, lane, next)) continue;
        ++next;
        moved = true;
      }
      if (!moved) return "stands still";
    }
  }

 private:
  struct Message {
    const std::vector<int64_t>* memory = nullptr;
    int64_t begin = 0, end = 0;
    bool published = false;
    bool taken = false;
    std::vector<int64_t> data;
    int receivers_left = 1;
  };
  struct Rank {
    std::vector<int64_t> user;  // both buffers, the same memory where in place
    std::vector<int64_t> scratch;
    int64_t in = 0, out = 0;  // where they begin
    std::vector<size_t> next;
    std::vector<std::vector<Message*>> posted;
    std::vector<std::set<size_t>> early;  // steps that are done before their turn
    int met = 0;                          // opens and meets that it has come to
    bool waiting = false;
  };

  // Unequal blocks lie in the user's buffers from the last to the first, with gaps between them.
  static constexpr int64_t kGap = 2;

  bool Unequal(const Plan& plan) const { return HasUnequalBlocks(plan.kind); }
  int32_t Blocks(BufferId buffer, const Plan& plan) const {
    const int32_t chunks = buffer == BufferId::kScratch ? plan.scratch_chunks : ChunksOf(buffer, RequestOf(plan));
    return chunks / plan.pieces;
  }
  int64_t LengthOf(const Plan& plan, BufferId buffer, int32_t block) const {
    if (!Unequal(plan)) return count_;
    int64_t name = LengthName(plan, {buffer, block * plan.pieces, 1});
    const bool pairs = plan.kind == CollectiveKind::kAllToAllV;
    const bool in_place = std::any_of(plans_.begin(), plans_.end(), [](const Plan& p) { return p.in_place; });
    if (pairs && in_place) {  // then both directions of a pair are equally long
      name = std::min(name, name % plan.size * plan.size + name / plan.size);
    }
    return static_cast<int64_t>(Scramble(static_cast<uint64_t>(name) + 77) % static_cast<uint64_t>(count_ + 1));
  }
  int64_t BlockBegin(const Plan& plan, BufferId buffer, int32_t block) const {
    if (!Unequal(plan)) return block * count_;
    int64_t begin = 0;
    if (buffer == BufferId::kScratch) {
      for (int32_t b = 0; b < block; ++b) begin += LengthOf(plan, buffer, b);
    } else {
      for (int32_t b = Blocks(buffer, plan) - 1; b > block; --b) begin += LengthOf(plan, buffer, b) + kGap;
    }
    return begin;
  }
  std::pair<int64_t, int64_t> PieceOf(const Plan& plan, BufferId buffer, int32_t chunk) const {
    const int32_t block = chunk / plan.pieces;
    const int64_t piece = chunk % plan.pieces;
    const int64_t begin = BlockBegin(plan, buffer, block);
    const int64_t length = LengthOf(plan, buffer, block);
    return {begin + piece * length / plan.pieces, begin + (piece + 1) * length / plan.pieces};
  }
  static uint64_t Scramble(uint64_t x) {
    x *= 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
  }
  static int64_t Input(int rank, int32_t block, int64_t i) {
    const auto index = static_cast<uint64_t>(block) * 4099 + static_cast<uint64_t>(i);
    return static_cast<int64_t>(Scramble(static_cast<uint64_t>(rank) * 1000003u + index + 1) & 0xffffffffffff);
  }
  int64_t Elements(BufferId buffer, const Plan& plan) const {
    int64_t end = 0;
    for (int32_t b = 0; b < Blocks(buffer, plan); ++b) {
      end = std::max(end, BlockBegin(plan, buffer, b) + LengthOf(plan, buffer, b));
    }
    return end;
  }

  Rank MakeRank(const Plan& plan) {
    Rank rank;
    const int32_t in = Blocks(BufferId::kIn, plan);
    const int32_t out = Blocks(BufferId::kOut, plan);
    if (!plan.in_place || in == 0 || out == 0) {
      rank.out = Elements(BufferId::kIn, plan);
    } else if (in > out) {
      rank.out = BlockBegin(plan, BufferId::kIn, plan.rank);
    } else if (out > in) {
      rank.in = BlockBegin(plan, BufferId::kOut, plan.rank);
    }
    rank.user.assign(static_cast<size_t>(
                         std::max(rank.in + Elements(BufferId::kIn, plan), rank.out + Elements(BufferId::kOut, plan))),
                     -7);
    for (int32_t b = 0; b < in; ++b) {
      const int64_t begin = rank.in + BlockBegin(plan, BufferId::kIn, b);
      for (int64_t i = 0; i < LengthOf(plan, BufferId::kIn, b); ++i) {
        rank.user[static_cast<size_t>(begin + i)] = Input(plan.rank, b, i);
      }
    }
    rank.scratch.assign(static_cast<size_t>(Elements(BufferId::kScratch, plan)), -9);
    rank.next.assign(plan.lanes.size(), 0);
    rank.posted.resize(plan.lanes.size());
    rank.early.resize(plan.lanes.size());
    return rank;
  }

  std::vector<int64_t>& Memory(size_t rank, const Slice& slice) {
    return slice.buffer == BufferId::kScratch ? ranks_[rank].scratch : ranks_[rank].user;
  }
  std::pair<int64_t, int64_t> Range(size_t rank, const Slice& slice) const {
    const int64_t base = slice.buffer == BufferId::kIn    ? ranks_[rank].in
                         : slice.buffer == BufferId::kOut ? ranks_[rank].out
                                                          : 0;
    if (slice.chunks == 0) return {base, base};
    return {base + PieceOf(plans_[rank], slice.buffer, slice.first).first,
            base + PieceOf(plans_[rank], slice.buffer, slice.first + slice.chunks - 1).second};
  }
  std::vector<int64_t> Read(size_t rank, const Slice& slice) {
    const auto [begin, end] = Range(rank, slice);
    return {Memory(rank, slice).begin() + begin, Memory(rank, slice).begin() + end};
  }
  void Write(size_t rank, const Slice& slice, const std::vector<int64_t>& data) {
    std::copy(data.begin(), data.end(), Memory(rank, slice).begin() + Range(rank, slice).first);
  }
  static void Take(Message* message) {
    message->data.assign(message->memory->begin() + message->begin, message->memory->begin() + message->end);
    message->taken = true;
  }
  static std::vector<int64_t> Sum(std::vector<int64_t> a, const std::vector<int64_t>& b) {
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) a[i] += b[i];
    return a;
  }

  bool SendsAreComplete(size_t rank, size_t lane, int32_t count) const {
    const auto& posted = ranks_[rank].posted[lane];
    if (posted.size() < static_cast<size_t>(count)) return false;
    return std::none_of(posted.begin(), posted.begin() + count,
                        [](const Message* message) { return !message->taken && message->receivers_left > 0; });
  }

  // Does some of the receives that may come before their turn: in their order, as the runner begins them.
  bool TryEarly(size_t rank, size_t lane) {
    const auto& steps = plans_[rank].lanes[lane].steps;
    const size_t next = ranks_[rank].next[lane];
    int32_t fence = 0;
    bool moved = false;
    for (size_t i = next; i < steps.size(); ++i) {
      const Step& step = steps[i];
      fence = std::max(fence, step.sends_before);
      if ((step.kind != StepKind::kRecv && step.kind != StepKind::kRecvReduce) ||
          ranks_[rank].early[lane].contains(i)) {
        continue;
      }
      if (i - next > static_cast<size_t>(step.ahead) || !SendsAreComplete(rank, lane, fence)) break;
      if (random_() % 2 == 0 || !TryStep(rank, lane, i)) break;
      ranks_[rank].early[lane].insert(i);
      moved = true;
    }
    return moved;
  }

  // False when the step has to wait.
  bool TryStep(size_t rank, size_t lane, size_t index) {
    const Step& step = plans_[rank].lanes[lane].steps[index];
    auto& posted = ranks_[rank].posted[lane];
    if (!SendsAreComplete(rank, lane, step.sends_before)) return false;
    const auto peer = static_cast<size_t>(step.peer);
    switch (step.kind) {
      case StepKind::kSend:
      case StepKind::kPublish: {
        const auto [begin, end] = Range(rank, step.src);
        Message& message = messages_.emplace_back();
        message.memory = &Memory(rank, step.src);
        message.begin = begin;
        message.end = end;
        message.published = step.kind == StepKind::kPublish;
        posted.push_back(&message);
        if (!message.published) {
          channels_[{rank, peer, lane}].push_back(&message);
          return true;
        }
        message.receivers_left = static_cast<int>(plans_.size()) - 1;
        for (size_t r = 0; r < plans_.size(); ++r) {
          if (r != rank) channels_[{rank, r, lane}].push_back(&message);
        }
        return true;
      }
      case StepKind::kRecv:
      case StepKind::kRecvReduce: {
        auto& channel = channels_[{peer, rank, lane}];
        if (channel.empty()) return false;
        Message* message = channel.front();
        channel.pop_front();
        if (!message->taken) Take(message);
        message->receivers_left -= 1;
        const bool reduce = step.kind == StepKind::kRecvReduce;
        Write(rank, step.dst, reduce ? Sum(message->data, Read(rank, step.src)) : message->data);
        return true;
      }
      case StepKind::kReduce:
        Write(rank, step.dst, Sum(Read(rank, step.src), Read(rank, step.src2)));
        return true;
      case StepKind::kCopy:
        Write(rank, step.dst, Read(rank, step.src));
        return true;
      case StepKind::kOpen:
      case StepKind::kMeet:
        return TryMeet(rank);
      case StepKind::kFold: {
        std::vector<int64_t> sum;
        for (const RankSlice& source : SourcesOf(plans_[rank], step)) {
          const std::vector<int64_t> data = Read(static_cast<size_t>(source.rank), source.slice);
          sum = sum.empty() ? data : Sum(sum, data);
        }
        for (const RankSlice& target : TargetsOf(plans_[rank], step)) {
          Write(static_cast<size_t>(target.rank), target.slice, sum);
        }
        return true;
      }
    }
    return false;
  }

  bool TryMeet(size_t rank) {
    Rank& own = ranks_[rank];
    if (!own.waiting) {
      own.waiting = true;
      ++own.met;
    }
    for (const Rank& other : ranks_) {
      if (other.met < own.met) return false;
    }
    own.waiting = false;
    return true;
  }

  int64_t Expected(const Plan& plan, int32_t block, int64_t i) const {
    const auto sum = [&](int32_t of) {
      int64_t total = 0;
      for (int r = 0; r < plan.size; ++r) total += Input(r, of, i);
      return total;
    };
    switch (EqualBlocksForm(plan.kind)) {
      case CollectiveKind::kBroadcast:
        return Input(plan.root, 0, i);
      case CollectiveKind::kReduce:
      case CollectiveKind::kAllReduce:
        return sum(0);
      case CollectiveKind::kGather:
      case CollectiveKind::kAllGather:
        return Input(block, 0, i);
      case CollectiveKind::kScatter:
        return Input(plan.root, plan.rank, i);
      case CollectiveKind::kReduceScatter:
        return sum(plan.rank);
      case CollectiveKind::kAllToAll:
        return Input(block, plan.rank, i);
      default:
        return 0;
    }
  }

  std::string CheckOutputs() const {
    for (size_t r = 0; r < plans_.size(); ++r) {
      const Plan& plan = plans_[r];
      for (int32_t b = 0; b < Blocks(BufferId::kOut, plan); ++b) {
        const int64_t begin = ranks_[r].out + BlockBegin(plan, BufferId::kOut, b);
        for (int64_t i = 0; i < LengthOf(plan, BufferId::kOut, b); ++i) {
          if (ranks_[r].user[static_cast<size_t>(begin + i)] == Expected(plan, b, i)) continue;
          return "rank " + std::to_string(r) + " has a wrong element " + std::to_string(i) + " in block " +
                 std::to_string(b) + " of out";
        }
      }
    }
    return "";
  }

  std::vector<Plan> plans_;
  int64_t count_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::deque<Message> messages_;  // addresses stay
  std::map<std::tuple<size_t, size_t, size_t>, std::deque<Message*>> channels_;
};

}  // namespace cohort::comm
