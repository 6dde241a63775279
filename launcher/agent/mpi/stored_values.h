// Values that a node keeps among the job's variables for other nodes, in pieces where a variable's size does not
// suffice. On the agent's event loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::launcher {

class StoredValues {
 public:
  struct Callbacks {
    // A call on the job's variables with a number of this object's own; answered by OnReply.
    std::function<void(const v1::VariableRequest&)> ask;
    std::function<void(const std::string& why)> on_refused;  // there is no room, or a value is none of ours
  };
  using Then = std::function<void(std::string)>;

  // `prefix` of its names: the same on all nodes and nobody else's.
  StoredValues(EventLoop* loop, std::string prefix, Callbacks callbacks);
  ~StoredValues();
  StoredValues(const StoredValues&) = delete;
  StoredValues& operator=(const StoredValues&) = delete;

  // Returns the number of pieces. A second value of a name, of one piece as the first, takes its place.
  size_t Put(const std::string& name, const std::string& value);
  // Waits for the value of that name, for however long. One that claims more pieces than there can be is refused.
  void Get(const std::string& name, Then then);
  // Removes a value of that many pieces, which every node has that wants it.
  void Remove(const std::string& name, size_t pieces);

  // One call on a variable, whose name stands as it is behind the prefix. `then` gets the answer, errors included.
  void Call(v1::VariableRequest request, std::function<void(const v1::VariableReply&)> then);

  void OnReply(const v1::VariableReply& reply);

 private:
  static constexpr uint32_t kGetTimeoutMs = 60'000;
  static constexpr std::chrono::seconds kAskAgainAfter{1};
  static constexpr size_t kPieceBytes = 44u << 10;                      // a variable takes 48 KiB
  static constexpr size_t kMostPieces = (64u << 20) / kPieceBytes + 1;  // all variables take 64 MiB
  // Pieces that travel at once, to or from the rendezvous. More would hold up what an agent's connection carries beside
  // them, the signs of its life among it, or exceed what it may hold unsent.
  static constexpr size_t kMostUnderWay = 16;

  struct Wanted {
    std::string name;
    Then then;
    std::vector<std::string> pieces;
    size_t missing = 1;
  };
  struct Asked {
    uint64_t wanted = 0;
    size_t piece = 0;
  };

  std::string KeyOf(const std::string& name, size_t piece) const {
    return prefix_ + name + "/" + std::to_string(piece);
  }
  void Ask(Asked what);
  // Asks when its turn comes. Not for what may wait long for its answer.
  void AskInTurn(v1::VariableRequest request);
  void AskNext();
  void Take(Asked what, const std::string& value);

  EventLoop* loop_;
  const std::string prefix_;
  Callbacks callbacks_;
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, Wanted> wanted_;
  std::unordered_map<uint64_t, Asked> asked_;
  std::unordered_map<uint64_t, std::function<void(const v1::VariableReply&)>> calls_;
  std::deque<v1::VariableRequest> in_turn_;                 // oldest first
  std::unordered_set<uint64_t> under_way_;                  // requests that had their turn, and are not answered
  std::unordered_map<uint64_t, EventLoop::TimerId> again_;  // by the request that was not answered in time
};

}  // namespace cohort::launcher
