// PMIx for the ranks of one node: what the agent tells a PMIx server, and what that asks. Without a type of PMIx.
//
//   rank's MPI library ──PMIx──► server ──Event──► agent's loop ──Answer──► server ──► rank
//
// The server itself gathers what the ranks of this node say in a fence; a job of one node needs nobody else for it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/agent/mpi/spawn/spawn_request.h"

namespace cohort::launcher {

class PmixEndpoint {
 public:
  struct Node {
    std::string name;  // unique in the job
    int first_rank = 0;
    int ranks = 0;  // more than 0
  };
  struct Job {
    std::string name;  // the namespace: used once in this process, the same on all nodes
    int world_size = 1;
    int universe = 1;
    std::vector<Node> nodes;
    size_t own = 0;             // which of them this one is
    std::vector<int> programs;  // by rank of the world: which of the job's it runs; empty: all the first
    std::string folder;         // is made for what this node's ranks put into files; empty: Open MPI makes its own
    std::string memory_folder;  // is made for the memory that they share; empty: Open MPI puts it into /dev/shm itself
    std::string parent;         // the namespace of the rank that has asked for this one; empty: none has
    int parent_rank = 0;        // that rank
  };

  // A rank of this node has called MPI_Init, or MPI_Finalize.
  struct Connected {
    int local_rank = 0;
  };
  struct Finalized {
    int local_rank = 0;
  };
  // It has called MPI_Abort, and waits to be killed.
  struct Aborted {
    int local_rank = 0;
    int code = 0;
    std::string text;
  };
  // Its library has something to say to the user, and waits for the answer, whose values are nothing.
  struct Said {
    uint64_t number = 0;
    int local_rank = 0;
    std::string text;
  };
  // All ranks of this node that belong to `ranks` (empty: the whole world) have come to a fence with these values.
  // Answer: the values of all nodes that have such ranks, joined in any order.
  struct Fence {
    uint64_t number = 0;
    std::vector<int> ranks;
    std::string values;
  };
  // A rank of this node wants the values of a rank of another one. Answer: those.
  struct Wanted {
    uint64_t number = 0;
    int rank = 0;
  };
  // The answer to AskForValues.
  struct Values {
    int local_rank = 0;
    std::string values;
    bool found = true;  // else it has none
  };
  // A rank of this node publishes what a name stands for. Answer: nothing.
  struct Publish {
    uint64_t number = 0;
    std::string name;
    std::string value;  // goes into AnswerLookUp as it is
    bool once = false;  // the first that looks it up takes it away
  };
  // It looks a name up, and waits for that long until it is published.
  struct LookUp {
    uint64_t number = 0;
    std::string name;
    std::chrono::milliseconds wait{0};
  };
  // It takes a name back. Answer: nothing.
  struct Unpublish {
    uint64_t number = 0;
    std::string name;
  };
  // It asks for new processes.
  struct Spawn {
    uint64_t number = 0;
    int local_rank = 0;
    SpawnRequest request;
  };
  // All ranks of this node that belong to some ranks, which need not be of one namespace, join or leave each other.
  // Answer: the values.
  struct Joined {
    uint64_t number = 0;
    bool all_here = true;  // there are no others
    std::string values;
  };
  using Event = std::variant<Connected, Finalized, Aborted, Said, Fence, Wanted, Values, Publish, LookUp, Unpublish,
                             Spawn, Joined>;
  // Called on any thread; must not block or call back.
  using Handler = std::function<void(Event)>;

  virtual ~PmixEndpoint() = default;

  // The variables by which a rank's MPI library finds the server.
  virtual std::vector<std::string> EnvironmentOf(int local_rank) = 0;
  // Answers the event of that number, once.
  virtual void Answer(uint64_t number, const std::string& values) = 0;
  // The same for a LookUp, and for a Spawn, whose processes run.
  virtual void AnswerLookUp(uint64_t number, const std::string& name, const std::string& value) = 0;
  virtual void AnswerSpawn(uint64_t number, const std::string& world) = 0;
  enum class Refusal { kNotFound, kTaken, kNoRoom, kNotSupported, kFailed };
  // Answers that it can't be had.
  virtual void Refuse(uint64_t number, Refusal why) = 0;
  // The values that a rank of this node has for others, when it has them: a Values.
  virtual void AskForValues(int local_rank) = 0;
  // "4.2". Servers whose versions differ don't understand each other's values.
  virtual std::string version() const = 0;
};

// Sets what the library reads in this process' environment. Before any thread exists.
void PreparePmixEnvironment();

// Takes some 0.1 s the first time. Not OK where there is no PMIx, with the remedy. `handle` is not called after the
// server's end.
absl::StatusOr<std::unique_ptr<PmixEndpoint>> StartPmixEndpoint(const PmixEndpoint::Job& job,
                                                                PmixEndpoint::Handler handle);

}  // namespace cohort::launcher
