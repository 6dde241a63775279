// Carries what the ranks of one node have put to the other nodes, through the job's key-value store: one key for each
// round and node, or several where a key's 64 KiB do not suffice. Each node fetches each key once.
//
// Bytes, with N nodes that publish B each: N B to the rendezvous, N (N - 1) B from it. On the agent's event loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::launcher {

class ValueExchange {
 public:
  struct Callbacks {
    // A call on the store with a number of this object's own; answered by OnPut or OnGet.
    std::function<void(const v1::PutRequest&)> put;
    std::function<void(const v1::GetRequest&)> get;
    // The values of all other nodes in the round that was fetched.
    std::function<void(const std::vector<std::string>& values)> on_all;
    std::function<void(const std::string& why)> on_refused;  // the store has no room
  };

  // `prefix` of its keys: the same on all nodes and nobody else's. `nodes`: those that take part; `own`: this one's
  // place among them.
  ValueExchange(EventLoop* loop, std::string prefix, size_t nodes, size_t own, Callbacks callbacks);
  ~ValueExchange();
  ValueExchange(const ValueExchange&) = delete;
  ValueExchange& operator=(const ValueExchange&) = delete;

  // This node's values of a round; once a round.
  void Publish(uint64_t round, const std::string& values);
  // Waits for the values of the others, for however long. One round at a time, after the last one's on_all.
  void Fetch(uint64_t round);

  void OnPut(const v1::PutReply& reply);
  void OnGet(const v1::GetReply& reply);

 private:
  static constexpr uint32_t kGetTimeoutMs = 60'000;
  static constexpr std::chrono::seconds kAskAgainAfter{1};
  static constexpr size_t kPieceBytes = 60u << 10;

  struct Asked {
    size_t node = 0;
    size_t piece = 0;
  };
  struct Node {
    std::vector<std::string> pieces;
    size_t missing = 1;
  };

  std::string KeyOf(uint64_t round, size_t node, size_t piece) const;
  void Ask(Asked what);
  void Take(Asked what, const std::string& value);

  EventLoop* loop_;
  const std::string prefix_;
  const size_t own_;
  Callbacks callbacks_;
  uint64_t next_request_ = 1;
  std::unordered_map<uint64_t, Asked> asked_;
  std::unordered_map<uint64_t, EventLoop::TimerId> again_;  // by the request that was not answered in time
  uint64_t round_ = 0;                                      // the one that is fetched
  std::vector<Node> nodes_;                                 // of that round
  size_t missing_nodes_ = 0;
};

}  // namespace cohort::launcher
