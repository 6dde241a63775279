// Runs plans on numbers in real memory, in a random order of events: the checker's counterpart that shares no code with
// it. In place is real here: the two buffers are the same memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "comm/plan/plan.h"

namespace cohort::comm {

// The numbers of one call: what goes in and what must come out, for blocks of `count` elements.
class NumericRun {
 public:
  NumericRun(const std::vector<Plan>& plans, int64_t count, uint64_t seed)
      : plans_(plans), count_(count), random_(seed) {
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
        if (!TryStep(rank, lane)) continue;
        ++ranks_[rank].next[lane];
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
  };

  int64_t PieceBegin(const Plan& plan, int32_t chunk) const {
    return chunk / plan.pieces * count_ + chunk % plan.pieces * count_ / plan.pieces;
  }
  static int64_t Input(int rank, int64_t i) {
    uint64_t x = static_cast<uint64_t>(rank) * 1000003u + static_cast<uint64_t>(i) + 1;
    x *= 0x9e3779b97f4a7c15u;
    return static_cast<int64_t>((x ^ (x >> 29)) & 0xffffffffffff);
  }
  int64_t Elements(BufferId buffer, const Plan& plan) const {
    return ChunksOf(buffer, RequestOf(plan)) / plan.pieces * count_;
  }

  Rank MakeRank(const Plan& plan) {
    Rank rank;
    const int64_t in = Elements(BufferId::kIn, plan);
    const int64_t out = Elements(BufferId::kOut, plan);
    const int64_t own = in == out ? 0 : plan.rank * count_;
    if (!plan.in_place || in == 0 || out == 0) {
      rank.out = in;
    } else if (in > out) {
      rank.out = own;
    } else {
      rank.in = own;
    }
    rank.user.assign(static_cast<size_t>(std::max(rank.in + in, rank.out + out)), -7);
    for (int64_t i = 0; i < in; ++i) rank.user[static_cast<size_t>(rank.in + i)] = Input(plan.rank, i);
    rank.scratch.assign(static_cast<size_t>(PieceBegin(plan, plan.scratch_chunks)), -9);
    rank.next.assign(plan.lanes.size(), 0);
    rank.posted.resize(plan.lanes.size());
    return rank;
  }

  std::vector<int64_t>& Memory(size_t rank, const Slice& slice) {
    return slice.buffer == BufferId::kScratch ? ranks_[rank].scratch : ranks_[rank].user;
  }
  std::pair<int64_t, int64_t> Range(size_t rank, const Slice& slice) const {
    const int64_t base = slice.buffer == BufferId::kIn    ? ranks_[rank].in
                         : slice.buffer == BufferId::kOut ? ranks_[rank].out
                                                          : 0;
    return {base + PieceBegin(plans_[rank], slice.first), base + PieceBegin(plans_[rank], slice.first + slice.chunks)};
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

  // False when the lane's next step has to wait.
  bool TryStep(size_t rank, size_t lane) {
    const Step& step = plans_[rank].lanes[lane].steps[ranks_[rank].next[lane]];
    auto& posted = ranks_[rank].posted[lane];
    for (int32_t i = 0; i < step.sends_before; ++i) {
      const Message& message = *posted.at(static_cast<size_t>(i));
      if (!message.taken && message.receivers_left > 0) return false;
    }
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
      case StepKind::kPut:
        return false;
    }
    return false;
  }

  int64_t Expected(const Plan& plan, int64_t i) const {
    const int64_t own = plan.rank * count_ + i % std::max<int64_t>(count_, 1);
    const int64_t block = count_ == 0 ? 0 : i / count_;
    const auto sum = [&](int64_t element) {
      int64_t total = 0;
      for (int r = 0; r < plan.size; ++r) total += Input(r, element);
      return total;
    };
    switch (plan.kind) {
      case CollectiveKind::kBroadcast:
        return Input(plan.root, i);
      case CollectiveKind::kReduce:
      case CollectiveKind::kAllReduce:
        return sum(i);
      case CollectiveKind::kGather:
      case CollectiveKind::kAllGather:
        return Input(static_cast<int>(block), i % count_);
      case CollectiveKind::kScatter:
        return Input(plan.root, own);
      case CollectiveKind::kReduceScatter:
        return sum(own);
      case CollectiveKind::kAllToAll:
        return Input(static_cast<int>(block), own);
      default:
        return 0;
    }
  }

  std::string CheckOutputs() const {
    for (size_t r = 0; r < plans_.size(); ++r) {
      for (int64_t i = 0; i < Elements(BufferId::kOut, plans_[r]); ++i) {
        if (ranks_[r].user[static_cast<size_t>(ranks_[r].out + i)] != Expected(plans_[r], i)) {
          return "rank " + std::to_string(r) + " has a wrong out[" + std::to_string(i) + "]";
        }
      }
    }
    return "";
  }

  const std::vector<Plan>& plans_;
  int64_t count_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::deque<Message> messages_;  // addresses stay
  std::map<std::tuple<size_t, size_t, size_t>, std::deque<Message*>> channels_;
};

}  // namespace cohort::comm
