// AgentConnection: the socket between a rank and its node's agent. Sends and receives whole messages; matches answers
// with requests; keeps news until somebody asks for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::runtime {

// Thread-safe, apart from Connect.
class AgentConnection {
 public:
  // Connects to `address` ('@' and an abstract name), says hello and receives the first message and the descriptor
  // that comes with it. kUnavailable when nobody listens, kPermissionDenied when somebody else does.
  absl::Status Connect(const std::string& address, const v1::RankMessage& hello, Deadline deadline,
                       v1::AgentMessage* first, FileDescriptor* descriptor);

  // The number for a request that has an answer. Never 0.
  uint64_t NextRequest() { return next_request_.fetch_add(1, std::memory_order_relaxed); }
  // Sends a message that carries the number `request` and waits for the answer with that number. kDeadlineExceeded, or
  // kUnavailable when the agent has gone.
  absl::StatusOr<v1::AgentMessage> Call(const v1::RankMessage& message, uint64_t request, Deadline deadline);
  // Sends a message that has no answer. Never blocks: what the socket does not take now is sent by a later Receive.
  void Post(const v1::RankMessage& message);

  // Reads what has come, without blocking. True when there is news for Take.
  bool Receive();
  // True when a thread that waited for its own answer has received news, or when something is left to be sent.
  bool pending() const { return pending_.load(std::memory_order_relaxed); }
  // The messages that are no answers, oldest first.
  std::deque<v1::AgentMessage> Take();
  // Sends a message after all that was posted, and waits until the agent closes the connection. kDeadlineExceeded;
  // kFailedPrecondition where it refuses something instead, with its words.
  absl::Status SendLast(const v1::RankMessage& message, Deadline deadline);
  // OK, or why nothing can be sent or received any more. Sticky.
  absl::Status status();

  // The agent's process.
  int agent_pid() const { return agent_pid_; }

 private:
  absl::Status Open(const std::string& address, Deadline deadline);
  absl::Status CheckPeer();
  absl::Status Send(const std::string& packet, Deadline deadline);
  void Drain() COHORT_REQUIRES(mutex_);
  bool ReceiveOne(FileDescriptor* descriptor) COHORT_REQUIRES(mutex_);
  void Sort(v1::AgentMessage message) COHORT_REQUIRES(mutex_);
  void Interrupt();
  void Flush() COHORT_REQUIRES(mutex_);
  bool AllSent();
  void Break(const std::string& why) COHORT_REQUIRES(mutex_);
  void UpdatePending() COHORT_REQUIRES(mutex_);

  FileDescriptor socket_;
  FileDescriptor interrupt_;  // an eventfd: ends the poll() of the thread that reads for all
  int agent_pid_ = 0;
  std::atomic<uint64_t> next_request_{1};
  std::atomic<bool> pending_{false};

  Mutex mutex_;
  CondVar received_;
  bool reading_ COHORT_GUARDED_BY(mutex_) = false;  // a thread sleeps in poll() for all that wait
  std::map<uint64_t, v1::AgentMessage> answers_ COHORT_GUARDED_BY(mutex_);
  std::map<uint64_t, bool> waiting_ COHORT_GUARDED_BY(mutex_);  // requests whose answer somebody wants
  std::deque<v1::AgentMessage> news_ COHORT_GUARDED_BY(mutex_);
  std::deque<std::string> unsent_ COHORT_GUARDED_BY(mutex_);
  absl::Status status_ COHORT_GUARDED_BY(mutex_);
  std::vector<char> buffer_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::runtime
