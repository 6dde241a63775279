// Jobs that are made up: programs of ranks, run by a clock that is a number, give the history that a trace would.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/launcher/verdict/history.h"

namespace cohort::launcher {

class World {
 public:
  static constexpr uint64_t kLatencyNs = 5'000;
  static constexpr uint64_t kBegunNs = 1'000'000'000;

  explicit World(uint32_t ranks, uint32_t ranks_per_node = 1u << 30) : per_node_(ranks_per_node), ranks_(ranks) {}

  // The next doing of a rank.
  void Compute(uint32_t rank, uint64_t ns, Activity activity = Activity::kComputes, const std::string& object = "") {
    ranks_[rank].program.push_back({.kind = Op::kCompute, .ns = ns, .activity = activity, .object = object});
  }
  // A call of all in a group, of which every rank gives the same list. `ns`: of the call itself.
  void AllReduce(uint32_t rank, const std::vector<uint32_t>& group, int site, uint64_t ns = kLatencyNs) {
    ranks_[rank].program.push_back({.kind = Op::kAllReduce, .ns = ns, .group = group, .site = site});
  }
  // The same without waiting for it.
  void StartAllReduce(uint32_t rank, const std::vector<uint32_t>& group, int site, uint64_t ns = kLatencyNs) {
    ranks_[rank].program.push_back({.kind = Op::kStart, .ns = ns, .group = group, .site = site});
  }
  // Waits for those that were started.
  void Wait(uint32_t rank) { ranks_[rank].program.push_back({.kind = Op::kWait}); }
  void Send(uint32_t rank, uint32_t to, int site) {
    ranks_[rank].program.push_back({.kind = Op::kSend, .site = site, .peer = to});
  }
  void Receive(uint32_t rank, uint32_t from, int site) {
    ranks_[rank].program.push_back({.kind = Op::kReceive, .site = site, .peer = from});
  }

  // Runs all programs as far as they come. Calls that have not ended by then are open, and last until `end_ns` after
  // the begin where that is later. Ranks that still compute then do so to its end.
  History Run(uint64_t end_ns = 0) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
        while (Advance(rank)) moved = true;
      }
    }
    uint64_t latest_ns = kBegunNs + end_ns;
    for (const TracedCall& call : history_.calls) latest_ns = std::max(latest_ns, call.end_ns);
    for (const size_t call : open_) history_.calls[call].end_ns = latest_ns;
    const size_t nodes = (ranks_.size() + per_node_ - 1) / per_node_;
    for (size_t node = 0; node < nodes; ++node) history_.nodes.push_back("node" + std::to_string(node));
    return std::move(history_);
  }

  static std::vector<uint32_t> All(uint32_t ranks) {
    std::vector<uint32_t> all;
    for (uint32_t rank = 0; rank < ranks; ++rank) all.push_back(rank);
    return all;
  }

 private:
  struct Op {
    enum Kind { kCompute, kAllReduce, kStart, kWait, kSend, kReceive };
    Kind kind = kCompute;
    uint64_t ns = 0;
    std::vector<uint32_t> group = {};
    int site = 0;
    uint32_t peer = 0;
    Activity activity = Activity::kComputes;
    std::string object = "";
  };
  struct Meeting {
    std::vector<size_t> calls;  // in the history
    uint64_t last_ns = 0;
    uint64_t end_ns = 0;  // 0: not all have come
  };
  using MeetingKey = std::pair<std::vector<uint32_t>, uint64_t>;
  struct Rank {
    std::vector<Op> program;
    size_t next = 0;
    uint64_t now_ns = kBegunNs;
    bool in_call = false;
    std::vector<MeetingKey> started;
    std::map<std::vector<uint32_t>, uint64_t> sequences;  // of groups
    std::map<uint32_t, uint64_t> sent, received;          // by peer
  };

  size_t AddCall(uint32_t rank, const Op& op, uint64_t sequence) {
    auto shape = std::make_shared<v1::CallShape>();
    const bool message = op.kind == Op::kSend || op.kind == Op::kReceive;
    shape->set_kind(op.kind == Op::kSend ? 10 : op.kind == Op::kReceive ? 11 : 3);
    shape->set_bytes(64);
    shape->set_root(-1);
    shape->set_group_rank(static_cast<int32_t>(rank));
    shape->set_device(-1);
    shape->set_peer_rank(message ? static_cast<int32_t>(op.peer) : -1);
    shape->set_group_size(static_cast<int32_t>(message ? ranks_.size() : op.group.size()));
    uint64_t group = 17;
    for (const uint32_t member : op.group) group = group * 31 + member + 1;
    shape->set_group(message ? 1 : group);
    shape->set_call(message ? "message" : "all_reduce(sum, float32, 16)");
    shape->set_site("train.cc:" + std::to_string(op.site));
    history_.calls.push_back({.rank = rank,
                              .node = rank / per_node_,
                              .shape = std::move(shape),
                              .sequence = sequence,
                              .start_ns = ranks_[rank].now_ns,
                              .end_ns = ranks_[rank].now_ns,
                              .state = runtime::CallState::kStarted});
    open_.push_back(history_.calls.size() - 1);
    return history_.calls.size() - 1;
  }
  void End(size_t call, uint64_t ns) {
    history_.calls[call].end_ns = ns;
    history_.calls[call].state = runtime::CallState::kDone;
    std::erase(open_, call);
  }

  bool Arrive(uint32_t rank, const Op& op, MeetingKey* key) {
    Rank& its = ranks_[rank];
    *key = {op.group, ++its.sequences[op.group]};
    Meeting& meeting = meetings_[*key];
    meeting.calls.push_back(AddCall(rank, op, key->second));
    meeting.last_ns = std::max(meeting.last_ns, its.now_ns);
    if (meeting.calls.size() < op.group.size()) return false;
    meeting.end_ns = meeting.last_ns + op.ns;
    for (const size_t call : meeting.calls) End(call, meeting.end_ns);
    return true;
  }

  // The rank's next operation, or a part of it. False: it waits, or has ended.
  bool Advance(uint32_t rank) {
    Rank& its = ranks_[rank];
    if (its.next == its.program.size()) return false;
    const Op& op = its.program[its.next];
    if (op.kind == Op::kCompute) {
      auto shape = std::make_shared<v1::StateShape>();
      shape->set_activity(static_cast<uint32_t>(op.activity));
      shape->set_object(op.object);
      const bool computes = op.activity == Activity::kComputes;
      if (op.ns > 0) {
        history_.states.push_back({.rank = rank,
                                   .node = rank / per_node_,
                                   .shape = std::move(shape),
                                   .begin_ns = its.now_ns,
                                   .end_ns = its.now_ns + op.ns,
                                   .computed_ns = computes ? op.ns : 0});
      }
      its.now_ns += op.ns;
    } else if (op.kind == Op::kStart) {
      MeetingKey key;
      Arrive(rank, op, &key);
      its.started.push_back(key);
      its.now_ns += 1'000;
    } else if (op.kind == Op::kSend) {
      const size_t call = AddCall(rank, op, ++its.sent[op.peer]);
      End(call, its.now_ns);
      messages_[{rank, op.peer}].push_back(its.now_ns);
    } else if (!AdvanceWait(rank, op)) {
      return false;
    }
    ++its.next;
    return true;
  }

  bool AdvanceWait(uint32_t rank, const Op& op) {
    Rank& its = ranks_[rank];
    if (op.kind == Op::kAllReduce && !std::exchange(its.in_call, true)) {
      MeetingKey key;
      Arrive(rank, op, &key);
      its.started.push_back(key);
    }
    if (op.kind == Op::kReceive) {
      if (!std::exchange(its.in_call, true)) receiving_[rank] = AddCall(rank, op, ++its.received[op.peer]);
      const std::vector<uint64_t>& sent = messages_[{op.peer, rank}];
      if (sent.size() < its.received[op.peer]) return false;
      its.now_ns = std::max(its.now_ns, sent[its.received[op.peer] - 1]) + kLatencyNs;
      End(receiving_[rank], its.now_ns);
      its.in_call = false;
      return true;
    }
    for (const MeetingKey& key : its.started) {
      if (meetings_[key].end_ns == 0) return false;
    }
    for (const MeetingKey& key : std::exchange(its.started, {})) {
      its.now_ns = std::max(its.now_ns, meetings_[key].end_ns);
    }
    its.in_call = false;
    return true;
  }

  const uint32_t per_node_;
  std::vector<Rank> ranks_;
  std::map<MeetingKey, Meeting> meetings_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint64_t>> messages_;  // when each was sent
  std::map<uint32_t, size_t> receiving_;
  std::vector<size_t> open_;
  History history_;
};

}  // namespace cohort::launcher
