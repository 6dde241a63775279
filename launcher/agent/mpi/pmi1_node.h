// PMI-1 for the ranks of one node: what is answered to each line, as a state machine without I/O.
//
// Values that ranks put are told to the other nodes at the next barrier, all of a node's at once, and each node gets
// them once. A barrier of ranks r0, r1 on node A and r2, r3 on node B:
//
//   r0, r1: put, put, barrier_in ─► A: Publish(round 1, A's values) ┐       ┌─► A: barrier_out to r0, r1
//                                                                   ├ store ┤
//   r2, r3: put, put, barrier_in ─► B: Publish(round 1, B's values) ┘       └─► B: barrier_out to r2, r3
//   get ─► answered by the node
//
// With one node nothing leaves it. The life of a rank's connection, and what it is when it has ended:
//
//                  init           a refused init   finalize, abort   end
//   kNew           kInitialized   kRefused         kFinalized        kUnused
//   kRefused       kInitialized   -                kFinalized        kLeft
//   kInitialized   -              -                kFinalized        kLeft
//   kFinalized     kInitialized   -                -                 kEnded     (init: a second program of the rank)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/mpi/mpi_use.h"
#include "cohort/launcher/agent/mpi/pmi1_message.h"
#include "cohort/launcher/agent/mpi/spawn/pmi1_spawn.h"
#include "cohort/launcher/agent/mpi/spawn/spawn_request.h"

namespace cohort::launcher {

class Pmi1Node {
 public:
  struct Job {
    std::string name;  // of the key-value space; the same on all nodes
    int world_size = 1;
    int universe = 1;
    int first_rank = 0;
    int local_ranks = 1;
    int nodes = 1;                  // those that have ranks
    std::string mapping;            // of ProcessMapping
    std::vector<int> appnums = {};  // by local rank: which of the job's programs it runs; empty: all the first
    std::vector<std::pair<std::string, std::string>> values = {};  // that its ranks find; no more than fit are kept
  };

  // A line for a rank, with its newline.
  struct Answer {
    int local_rank = 0;
    std::string line;
  };
  // The values that the other nodes must get for this barrier. OnAllPublished is called when theirs are here.
  struct Publish {
    uint64_t round = 0;
    std::string values;
  };
  // This local rank is in MPI, and can't go on without a rank that has ended its connection without MPI_Finalize.
  struct Abandoned {
    int local_rank = 0;
    std::string by;  // "rank 3, which ..."
  };
  // A local rank, which is in MPI, has started a second MPI program over its connection: that one is refused. Once for
  // each rank.
  struct Nested {
    int local_rank = 0;
  };
  // A rank of this node, by its number in the world, has ended so: the other nodes are to be told.
  struct Left {
    int by = 0;
  };
  // A rank has called MPI_Abort with that code, and waits to be killed.
  struct Aborted {
    int local_rank = 0;
    int code = 0;
  };
  // A rank publishes the name of a service, or looks it up, and waits for the line of NameAnswer.
  struct NameCall {
    enum class Kind { kPublish, kLookUp, kUnpublish };
    int local_rank = 0;
    Kind kind = Kind::kPublish;
    std::string name;
    std::string port;  // of kPublish
  };
  // A rank asks for new processes, and waits for the line of SpawnAnswer.
  struct Spawn {
    int local_rank = 0;
    SpawnRequest request;
  };
  using Event = std::variant<Answer, Publish, Abandoned, Nested, Left, Aborted, NameCall, Spawn>;
  using Events = std::vector<Event>;

  // Bounded: all values of the job together. More are refused.
  static constexpr size_t kMaxBytes = 64u << 20;
  static constexpr size_t kEntryBytes = 128;  // what a value takes beside its bytes

  explicit Pmi1Node(Job job);

  // `why` empty: done. `port`: what kLookUp has found.
  static std::string NameAnswer(NameCall::Kind kind, std::string_view why, std::string_view port = {});
  // OK: `count` processes run. Each has a code in the line where that has room for all.
  static std::string SpawnAnswer(const absl::Status& status, int count);

  // A line of a local rank, without its newline; any bytes.
  Events OnLine(int local_rank, std::string_view line);
  // Its connection has ended.
  Events OnClosed(int local_rank);
  // The other nodes' values of the round that was published last.
  Events OnAllPublished(const std::vector<std::string>& values);
  // Another node has told what MPI can't go on without.
  Events OnLeftElsewhere(const std::string& what);

  MpiUse UseOf(int local_rank) const;
  // How many local ranks have come to the barrier under way.
  int in_barrier() const { return in_barrier_; }
  // Whether all of them have, and the barrier waits for other nodes.
  bool waits_for_nodes() const { return publishing_; }
  // The node's ranks that have not, by their numbers in the world; empty while nobody has.
  std::vector<int> MissingInBarrier() const;

 private:
  enum class State : uint8_t { kNew, kRefused, kInitialized, kFinalized, kUnused, kLeft, kEnded };
  // Whether the connection has ended.
  static bool IsClosed(State state) { return state >= State::kUnused; }
  // The state of a connection that ends in this one.
  static State Closed(State before);
  struct Rank {
    State state = State::kNew;
    int appnum = 0;
    bool in_barrier = false;
    bool nested_is_told = false;
    Pmi1Spawn spawn;
  };

  // A line of a request for new processes.
  Events OnSpawnLine(int local_rank, std::string_view line);
  // Nothing: the message is no call on the names of services.
  static std::optional<Event> AsNameCall(int local_rank, const Pmi1Message& message);
  std::string Reply(Rank& rank, const Pmi1Message& message);
  std::string Put(const Pmi1Message& message);
  std::string Get(const Pmi1Message& message) const;
  // A local rank that is in MPI, rather one in the barrier; -1: there is none.
  int RankInMpi() const;
  // A rank is in MPI and another never comes to it, or has gone from it without a word, or waits in a barrier for one
  // that has gone in order.
  void LookForLeft(Events* events) const;
  Events EnterBarrier(int local_rank);
  Events LeaveBarrier();
  // Adds values as Publish carries them: a line each, with a blank between the key, which has none, and the value.
  // False: too many.
  bool Merge(std::string_view values);
  bool Store(std::string key, std::string value);
  std::string TakeUnpublished();

  const Job job_;
  std::vector<Rank> ranks_;
  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;
  std::set<std::string> unpublished_;  // keys put since the last barrier
  int in_barrier_ = 0;
  uint64_t round_ = 0;
  bool publishing_ = false;
  bool end_is_told_ = false;    // to the other nodes: a rank of this one has left
  std::string left_elsewhere_;  // what another node has told
};

}  // namespace cohort::launcher
