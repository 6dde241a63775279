// The bootstrap tells a process who it is and reaches its peers before there is a communicator. There are three kinds:
// - the agent's socket (under dlaunch; chosen when COHORT_AGENT is set),
// - a world of one (nothing is set),
// - a program's own launcher, which brings rank, size and a key-value store (BootstrapFromStore).
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

// A device that this rank owns. `index` counts the rank's devices from 0. The devices with the same `index` on all
// ranks form device group `index`.
struct Device {
  int index = 0;
  DeviceKind kind = DeviceKind::kSimulated;
  int node_index = 0;  // the number of the device on its node; for CUDA the visible ordinal of this process is `index`
  std::string id = {};
};

struct NodeInfo {
  int index = 0;
  std::string name = {};
  int first_rank = 0;
  int rank_count = 0;
};

// Everything a rank knows about itself and its world. It does not change within an epoch.
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
  std::string data_interface_ip = {};  // the address that data transports bind to; empty: any
  bool nodes_share_host = false;       // simulated nodes on one machine
};

// The ranks that a message concerns: everyone, or the listed world ranks.
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
  // If not 0, this answers a ReportStall with `expired`. Members that still wait in this operation end the group. For
  // the other members nothing has happened.
  uint64_t sequence = 0;
};

// One call on the job's variables. They are values that every rank may change, with the semantics of
// torch.distributed's Store.
struct VariableCall {
  enum class Kind {
    kGet,         // waits for the variable until the deadline
    kSet,         // replaces the value
    kAdd,         // adds `amount` to a decimal number; a variable that is not there counts as 0
    kCompareSet,  // sets if the value is `expected`, or if there is none and `expected` is empty
    kDelete,
    kCount,  // of all variables
  };
  Kind kind = Kind::kGet;
  std::string key = {};
  std::string value = {};
  std::string expected = {};
  int64_t amount = 0;
};

struct VariableResult {
  bool found = false;      // kSet, kDelete: the variable was there; kCompareSet: it is there now
  std::string value = {};  // kGet: the value. kSet, kDelete: the former one. kCompareSet: that now, else `expected`
  int64_t number = 0;      // kAdd: the sum; kCount: how many; kCompareSet: 1 if it has set
};

// Receives news from outside this process. The engine's owner calls it while it polls.
class BootstrapListener {
 public:
  virtual ~BootstrapListener() = default;
  virtual void OnRanksLost(const std::vector<int>& ranks, const std::string& text) = 0;
  virtual void OnGroupFailure(const GroupFailure& failure) = 0;
  // The job must end soon because of `signal`. All ranks' steps are then compared (Runtime::OnPreemption).
  virtual void OnPreemptionNotice(int signal) { (void)signal; }
  // The step that no rank begins. Without a value the job goes on.
  virtual void OnStopStep(std::optional<uint64_t> step) { (void)step; }
};

// One thread makes it. The engine's owner calls Poll, Look, Report* and Goodbye.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Learns the identity and the segment. Blocks. Fails with kDeadlineExceeded or kUnavailable and names the cause.
  struct Joined {
    Identity identity = {};
    std::unique_ptr<Segment> segment = nullptr;
  };
  virtual absl::StatusOr<Joined> Join(Deadline deadline) = 0;
  // Called before Join: after a failure this process may join the next epoch itself (Runtime::NextEpoch).
  virtual void MayStay() {}
  // The job's key-value store. Each key is written once, by one rank. Values have at most 48 KiB. Get blocks until the
  // key is there. Any thread may call both. Errors:
  // - kNotFound: the store says that nobody had put the key by the deadline.
  // - kDeadlineExceeded: the agent did not answer, so the key may be there.
  // - kUnavailable: the agent has gone.
  // - kInvalidArgument, kAlreadyExists.
  virtual absl::Status Put(std::string_view key, std::string_view value, Deadline deadline) = 0;
  virtual absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) = 0;
  // Runtime::CallVariable. Any thread may call.
  virtual absl::StatusOr<VariableResult> CallVariable(const VariableCall& call, Deadline deadline) {
    (void)call, (void)deadline;
    return absl::UnimplementedError("only jobs of dlaunch have variables");
  }
  // Delivers pending news to the listener and returns whether any came. It is cheap when there is none (one relaxed
  // load).
  virtual bool Poll(BootstrapListener& listener) = 0;
  // Called before this rank sleeps. Looks for the one event that cannot wake it, the end of the connection. Returns
  // whether there is news.
  virtual bool Look() { return false; }
  // The second net: an operation does not move (StallReport in agent.proto). The answer, if any, is an OnGroupFailure.
  virtual void ReportStall(uint64_t group, uint64_t epoch, uint64_t sequence, const RankSet& members, bool expired) = 0;
  // A send or a receive of this group does not move. Nothing is compared. The group's members are told if its ranks
  // wait for each other. The answer, if any, is an OnGroupFailure.
  virtual void ReportWait(uint64_t group, uint64_t epoch, const RankSet& members) {
    (void)group, (void)epoch, (void)members;
  }
  // The first net and the transports: reports a failure to every other member.
  virtual void ReportGroupFailure(const GroupFailure& failure) = 0;
  // Asks for this process to be killed, with the reason: something in it goes on that it cannot stop itself. Returns
  // false when nobody can do so.
  virtual bool AskToBeKilled(const std::string& why) {
    (void)why;
    return false;
  }
  // The three steps of Runtime::OnPreemption. AskForNotices: this rank wants to receive notices. ReportPreemptionStep:
  // this rank has begun only steps below `step`, and begins no other before it receives the stop step. ReportPreempted:
  // this rank stops before `step`. The defaults serve a bootstrap that sends no notices.
  virtual void AskForNotices() {}
  virtual void ReportPreemptionStep(uint64_t step) { (void)step; }
  virtual void ReportPreempted(uint64_t step) { (void)step; }
  // Says that this rank ends in order.
  virtual void Goodbye() = 0;

  // Whether there are further epochs. Only then do AwaitNextEpoch and NewOfThisKind mean something.
  virtual bool HasEpochs() const { return false; }
  // Replaces Goodbye: this rank lives on, has let go of all that belongs to the epoch, and waits for the next. Called
  // after the segment has gone. Afterwards only NewOfThisKind may be called. Blocks. Fails with kDeadlineExceeded, or
  // with kFailedPrecondition when there is no next epoch.
  virtual absl::Status AwaitNextEpoch(Deadline deadline) {
    (void)deadline;
    return absl::UnimplementedError("only jobs of dlaunch have further epochs");
  }
  // Returns a bootstrap that joins the same job as the same local rank, or null.
  virtual std::unique_ptr<Bootstrap> NewOfThisKind() const { return nullptr; }
};

// A key-value store of a program with its own launcher (MPI, a scheduler's PMI, a file). Both calls may block and may
// come from several threads at once. Keys are short ASCII, values have at most 48 KiB, and each key is put once. Get
// waits for the key until the deadline. Then it fails with kNotFound or kDeadlineExceeded, which mean the same here.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual absl::Status Put(std::string_view key, std::string_view value) = 0;
  virtual absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) = 0;
};

std::unique_ptr<Bootstrap> BootstrapFromAgent(std::string address, int local_rank);
// For a process that only writes its calls into the black box of its rank (Segment::Role::kRecorder) and reports stalls
// of calls that nobody can fail. The agent is not concerned with its end. It serves until a runtime of the rank joins,
// which ends the connection. Join fails with kAlreadyExists where a process of the rank has joined before.
std::unique_ptr<Bootstrap> RecorderFromAgent(std::string address, int local_rank);
std::unique_ptr<Bootstrap> BootstrapWorldOfOne();
// Joins rank `rank` of `world_size` ranks through `store`, which must outlive the bootstrap and serves one Join per
// rank. Consecutive ranks with equal boot id, user and pid namespace share a node. The first of them makes the segment.
// Ranks of one host that are not numbered consecutively count as several nodes, which talk over the network.
//
// On this node, deaths of peers are seen by pidfd and mismatched calls by comparing black boxes. On other nodes only
// the transports' errors and deadlines report them.
std::unique_ptr<Bootstrap> BootstrapFromStore(KeyValueStore* store, int rank, int world_size);

}  // namespace cohort::runtime
