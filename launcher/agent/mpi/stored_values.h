// Values that a node puts into the job's key-value store for other nodes, in pieces where a key's 64 KiB do not
// suffice. On the agent's event loop.
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

class StoredValues {
 public:
  struct Callbacks {
    // A call on the store with a number of this object's own; answered by OnPut or OnGet.
    std::function<void(const v1::PutRequest&)> put;
    std::function<void(const v1::GetRequest&)> get;
    std::function<void(const std::string& why)> on_refused;  // the store has no room
  };
  using Then = std::function<void(std::string)>;

  // `prefix` of its keys: the same on all nodes and nobody else's.
  StoredValues(EventLoop* loop, std::string prefix, Callbacks callbacks);
  ~StoredValues();
  StoredValues(const StoredValues&) = delete;
  StoredValues& operator=(const StoredValues&) = delete;

  // Once a name.
  void Put(const std::string& name, const std::string& value);
  // Waits for the value of that name, for however long.
  void Get(const std::string& name, Then then);

  void OnPut(const v1::PutReply& reply);
  void OnGet(const v1::GetReply& reply);

 private:
  static constexpr uint32_t kGetTimeoutMs = 60'000;
  static constexpr std::chrono::seconds kAskAgainAfter{1};
  static constexpr size_t kPieceBytes = 60u << 10;

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

  void Ask(Asked what);
  void Take(Asked what, const std::string& value);

  EventLoop* loop_;
  const std::string prefix_;
  Callbacks callbacks_;
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, Wanted> wanted_;
  std::unordered_map<uint64_t, Asked> asked_;
  std::unordered_map<uint64_t, EventLoop::TimerId> again_;  // by the request that was not answered in time
};

}  // namespace cohort::launcher
