// A running dlaunch can be asked and told to end here: an abstract unix socket named after its job, so that
// `dlaunch status` and `dlaunch kill` find jobs without a daemon, a port or a file.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cohort/launcher/agent/rank/rank_socket.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

inline constexpr char kJobSocketPrefix[] = "@cohort-dlaunch.";
inline constexpr uint32_t kJobProtocol = 2;

class JobSocket {
 public:
  struct Callbacks {
    // With the nodes, kNodesPerAnswer at the most, or the ranks or stacks, kBytesOfRanks at the most, that the request
    // asks for.
    std::function<v1::JobSnapshot(const v1::JobRequest& request)> snapshot;
    std::function<void(bool at_once)> stop;
  };
  static constexpr size_t kNodesPerAnswer = 200;
  static constexpr size_t kBytesOfRanks = 48u << 10;

  JobSocket(EventLoop* loop, Callbacks callbacks);

  // kInternal where the address can't be had: nobody can ask then, the job goes on.
  absl::Status Listen(const std::string& job_id);

 private:
  // Strangers may connect: others than these are closed, or lose their place when they have been silent for a second.
  static constexpr int kMaxAskers = 256;

  void OnPacket(RankSocket::PeerId from, const std::string& packet);
  v1::JobAnswer Answer(RankSocket::PeerId from, const std::string& packet);

  Callbacks callbacks_;
  RankSocket socket_;
};

}  // namespace cohort::launcher
