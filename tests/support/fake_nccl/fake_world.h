// Communicators of the fake NCCL.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/fake_nccl/fake_math.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/fake_nccl/fake_state.h"

namespace fake {

struct Message {
  const void* data;
  void* target;
  size_t bytes;
  TaskPointer task;
};
struct SplitVote {
  int color;
  int key;
  ncclComm_t made;
};
struct World {
  int size = 0;
  std::set<int> joined;
  std::map<uint64_t, Collective> collectives;
  std::map<std::pair<int, int>, std::deque<Message>> messages;
  std::map<std::pair<int, int>, std::deque<Message>> receives;
  std::map<uint64_t, std::map<int, SplitVote>> splits;
  std::map<uint64_t, std::shared_ptr<World>> shrunk;
};

struct Configuration {
  FakeNcclMode mode = kFakeWorks;
  int k = 0;
  int rank = -1;
  bool abort_hangs = false;
};
extern Configuration configuration;
extern int live;
extern int made[4];  // communicators made so far: from ids, by split, by shrink, by a split and blocking

// Starts a communicator of `world`, on the current device; it counts as being set up until all have joined.
ncclComm_t MakeCommunicator(const std::shared_ptr<World>& world, int rank);
// Fills in the handle of a communicator that was made from `parent` soon, from another thread.
void FillIn(ncclComm* parent, ncclComm** handle, ncclComm* child);

}  // namespace fake

struct ncclComm {
  std::shared_ptr<fake::World> world;  // null: a split that not all ranks have called yet
  int rank = 0;
  int device = 0;  // which must be current in all calls
  uint64_t sequence = 0;
  uint64_t splits = 0;
  uint64_t shrinks = 0;
  int in_progress = 0;  // polls of the state that still say so; negative: all
  bool revoked = false;
  bool blocking = false;  // calls return when it is no longer in progress
  ncclResult_t async = ncclSuccess;
  std::vector<fake::TaskPointer> pending;
  std::vector<void**> windows;               // handles that are filled in when it is no longer in progress
  std::map<ncclComm**, ncclComm*> children;  // those of communicators made from it, not filled in yet
};
