// Carries the ranks' calls on the job's key-value store and on its variables to the rendezvous, and the answers back;
// also those of the agent itself, as of a peer number 0. Keeps copies of keys, which are written once; variables
// change, so none of those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cohort/launcher/agent/rank/rank_socket.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class StoreRelay {
 public:
  static constexpr RankSocket::PeerId kAgentItself = 0;
  // Variables whose names begin so are the agents' own: ranks may read them, and are refused to change them.
  static constexpr std::string_view kOwnNames = ".mpi/";

  struct Callbacks {
    std::function<void(const v1::FromAgent&)> to_rendezvous;
    std::function<void(RankSocket::PeerId to, const v1::AgentMessage&)> to_rank;
    std::function<void(const v1::AgentMessage&)> to_agent;
  };

  // An answer to a call of another epoch, which the rendezvous may still send, is not taken for one of this.
  StoreRelay(uint64_t epoch, Callbacks callbacks)
      : callbacks_(std::move(callbacks)), next_request_((epoch << kBitsOfRequests) + 1) {}

  // Calls of a rank.
  void OnPut(RankSocket::PeerId from, const v1::PutRequest& request);
  void OnGet(RankSocket::PeerId from, const v1::GetRequest& request);
  void OnVariable(RankSocket::PeerId from, const v1::VariableRequest& request);
  // Answers of the rendezvous. One to a call that nobody waits for any more is dropped.
  void OnPutReply(const v1::PutReply& reply);
  void OnGetReply(const v1::GetReply& reply);
  void OnVariableReply(const v1::VariableReply& reply);
  // This rank has gone: nothing more is sent to it.
  void Forget(RankSocket::PeerId peer);

 private:
  static constexpr size_t kMaxCacheBytes = 64u << 20;
  static constexpr int kBitsOfRequests = 40;  // of one epoch

  struct Pending {
    RankSocket::PeerId peer = 0;
    uint64_t request = 0;  // the rank's number for it
    std::string key;
  };

  void Answer(RankSocket::PeerId to, const v1::AgentMessage& message);
  // Remembers who asked, and returns the number under which the rendezvous is asked.
  uint64_t Note(RankSocket::PeerId from, uint64_t request, std::string key);

  const Callbacks callbacks_;
  uint64_t next_request_;
  std::unordered_map<uint64_t, Pending> pending_;
  std::unordered_map<std::string, std::string> cache_;
  size_t cache_bytes_ = 0;
};

}  // namespace cohort::launcher
