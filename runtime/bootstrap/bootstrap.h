// How a process learns who it is and reaches its peers before there is a communicator. Three kinds:
//   the agent's socket (under dlaunch; chosen when COHORT_AGENT is set),
//   a world of one (nothing is set),
//   a program's own launcher: rank, size and a key-value store that it brings along (FromStore).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

enum class DeviceKind { kSimulated, kCuda };

// A device that this rank owns. `index` counts the rank's devices from 0; the index-th devices of all ranks form
// device group `index`.
struct Device {
  int index = 0;
  DeviceKind kind = DeviceKind::kSimulated;
  int node_index = 0;  // which of the node's devices; for CUDA the visible ordinal of this process is `index`
  std::string id = {};
};

struct NodeInfo {
  int index = 0;
  std::string name = {};
  int first_rank = 0;
  int rank_count = 0;
};

// Everything a rank knows about itself and its world. Immutable within an epoch.
struct Identity {
  std::string job_id = {};
  uint64_t epoch = 1;
  int rank = 0;
  int world_size = 1;
  int node = 0;
  int local_rank = 0;
  int local_world_size = 1;
  int devices_per_rank = 0;
  std::vector<Device> devices = {};
  std::vector<NodeInfo> nodes = {};    // ordered by first_rank, covering 0 .. world_size - 1
  std::string job_secret = {};         // 32 bytes, or empty in a world of one
  std::string data_interface_ip = {};  // address that data transports bind to; empty: any
  bool nodes_share_host = false;       // simulated nodes on one machine
};

// The ranks a message is about: everyone, or the listed world ranks.
struct RankSet {
  bool everyone = false;
  std::vector<int> ranks = {};
  bool contains(int rank) const;
};

struct GroupFailure {
  uint64_t group = 0;
  uint64_t epoch = 0;
  RankSet members = {};
  absl::Status status = {};
  int blamed_rank = -1;
  int from_rank = -1;
  // Not 0: this answers ReportStall with `expired`. The members that still wait in this operation end the group; for
  // the others nothing has happened.
  uint64_t sequence = 0;
};

// News from outside this process. Called by the engine's owner, while it polls.
class BootstrapListener {
 public:
  virtual ~BootstrapListener() = default;
  virtual void OnRanksLost(const std::vector<int>& ranks, const std::string& text) = 0;
  virtual void OnGroupFailure(const GroupFailure& failure) = 0;
  // The job is told to end soon, by `signal`. Then all ranks' steps are compared (Runtime::OnPreemption).
  virtual void OnPreemptionNotice(int signal) { (void)signal; }
  // The step that no rank begins, or nothing: the job goes on.
  virtual void OnStopStep(std::optional<uint64_t> step) { (void)step; }
};

// Made by one thread; Poll, Look, Report* and Goodbye are called by the engine's owner.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Learns the identity and the segment. Blocks; fails with kDeadlineExceeded or kUnavailable and the cause.
  struct Joined {
    Identity identity = {};
    std::unique_ptr<Segment> segment = nullptr;
  };
  virtual absl::StatusOr<Joined> Join(Deadline deadline) = 0;
  // Before Join: after a failure this process may join the next epoch itself (Runtime::NextEpoch).
  virtual void MayStay() {}
  // The job's key-value store: a key is written once, by one rank; values have at most 48 KiB. Get blocks until it is
  // there; kNotFound: the store says that nobody had put it by the deadline. kDeadlineExceeded (the agent did not
  // answer, so the key may be there), kUnavailable (the agent has gone), kInvalidArgument, kAlreadyExists. Any thread.
  virtual absl::Status Put(std::string_view key, std::string_view value, Deadline deadline) = 0;
  virtual absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) = 0;
  // Delivers pending news to the listener. Cheap when there is none (one relaxed load). True when anything came.
  virtual bool Poll(BootstrapListener& listener) = 0;
  // Called before this rank sleeps: looks for what cannot wake it, the end of the connection. True when there is news.
  virtual bool Look() { return false; }
  // Second net: an operation does not move; see StallReport in agent.proto. The answer, if any, is an OnGroupFailure.
  virtual void ReportStall(uint64_t group, uint64_t epoch, uint64_t sequence, const RankSet& members, bool expired) = 0;
  // First net and transports: tells every other member.
  virtual void ReportGroupFailure(const GroupFailure& failure) = 0;
  // Asks to be killed, with the reason: something of this process goes on that can't be stopped from inside. False when
  // there is nobody to do so.
  virtual bool AskToBeKilled(const std::string& why) {
    (void)why;
    return false;
  }
  // Preemption, as Runtime::OnPreemption goes through it: this rank wants to hear of notices; has begun steps
  // below `step` only, and begins no other before it is told the stop step; stops before `step`. The defaults are for
  // where nobody tells.
  virtual void AskForNotices() {}
  virtual void ReportPreemptionStep(uint64_t step) { (void)step; }
  virtual void ReportPreempted(uint64_t step) { (void)step; }
  // This rank ends in order.
  virtual void Goodbye() = 0;

  // Whether there are further epochs, and AwaitNextEpoch and NewOfThisKind so mean something.
  virtual bool HasEpochs() const { return false; }
  // Instead of Goodbye: this rank lives on, has let go of all that belongs to the epoch, and waits for the next. After
  // the segment has gone; nothing else may be called then but NewOfThisKind. kDeadlineExceeded; kFailedPrecondition:
  // there is no next epoch.
  virtual absl::Status AwaitNextEpoch(Deadline deadline) {
    (void)deadline;
    return absl::UnimplementedError("only jobs of dlaunch have further epochs");
  }
  // One that joins the same job as the same local rank, or null.
  virtual std::unique_ptr<Bootstrap> NewOfThisKind() const { return nullptr; }
};

// A key-value store that a program with its own launcher (MPI, a scheduler's PMI, a file) brings along. Both calls may
// block, and may come from several threads at once; keys are short ASCII, values at most 48 KiB, each key is put once.
// Get waits for the key until the deadline and then fails with kNotFound or kDeadlineExceeded, which mean the same
// here.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual absl::Status Put(std::string_view key, std::string_view value) = 0;
  virtual absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) = 0;
};

std::unique_ptr<Bootstrap> BootstrapFromAgent(std::string address, int local_rank);
std::unique_ptr<Bootstrap> BootstrapWorldOfOne();
// Joins rank `rank` of `world_size` through `store`, which must outlive the bootstrap and serve one Join per rank.
// Consecutive ranks with equal boot id, user and pid namespace share a node; the first of them makes the segment.
// Peers' deaths on this node are seen by pidfd, calls that do not match by comparing black boxes; on other nodes only
// the transports' errors and deadlines tell. Ranks of one host that are not numbered consecutively are treated as
// several nodes, which talk over the network.
std::unique_ptr<Bootstrap> BootstrapFromStore(KeyValueStore* store, int rank, int world_size);

}  // namespace cohort::runtime
