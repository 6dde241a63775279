// One collective call with known inputs and a serial reference: the table that every transport and algorithm must pass.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/comm/batch.h"
#include "cohort/comm/communicator.h"

namespace cohort::testing {

struct CollectiveCase {
  comm::CollectiveKind kind = comm::CollectiveKind::kBarrier;
  comm::DataType dtype = comm::DataType::kFloat32;
  comm::ReduceOp op = comm::ReduceOp::kSum;
  int64_t count = 0;  // the call's block; of unequal blocks none is longer
  int root = 0;       // send/recv (kind kSend): the sender
  int peer = 0;       // send/recv: the receiver
  bool in_place = false;
  std::string algorithm;  // empty: the selector's
  uint64_t salt = 0;      // changes the inputs
  comm::Determinism determinism = comm::Determinism::kDefault;

  std::string ToString() const;
};

// Returns the options that `rank` passes with the call.
comm::CallOptions OptionsOf(const CollectiveCase& the_case, int rank);

// Elements [first, first + count) of a rank's input, and of the reduction over all ranks.
std::vector<std::byte> InputOf(const CollectiveCase& the_case, int rank, int64_t first, int64_t count);
std::vector<std::byte> CombinedOf(const CollectiveCase& the_case, int size, int64_t first, int64_t count);

// A case under way on one rank. Inputs are small integers, so that floating-point sums are exact; every element of the
// result is compared, and memory around the buffers must stay as it was.
class PendingCase {
 public:
  // Starts the call, or adds it to `batch`, if there is one (which takes all but barriers); set_work then tells the
  // batch's Work. The case must outlive it. The buffers lie in `room`, as far as they fit there, else in memory of
  // their own. Buffers of unequal blocks always do the latter.
  PendingCase(comm::Communicator& communicator, const CollectiveCase& the_case, comm::Batch* batch = nullptr,
              std::span<std::byte> room = {});
  void set_work(const runtime::Work& work) { work_ = work; }
  // Waits, and returns "" or what is wrong.
  std::string Finish();
  bool Done() const { return work_.Done(); }

 private:
  // A buffer with guard bytes on both sides.
  class Memory {
   public:
    Memory(size_t bytes, uint8_t fill);
    // Takes its place from the front of `room`, if it fits there.
    Memory(size_t bytes, uint8_t fill, std::span<std::byte>* room);
    std::byte* data() { return bytes_.data() + kGuard; }
    size_t size() const { return bytes_.size() - 2 * kGuard; }
    bool guards_intact() const;

   private:
    static constexpr size_t kGuard = 64;
    std::vector<std::byte> own_;
    std::span<std::byte> bytes_;
  };

  int Start(comm::Communicator& communicator);
  int StartUnequal(comm::Communicator& communicator);
  std::string Compare(const std::vector<std::byte>& expected, const std::byte* actual, const char* what) const;

  const CollectiveCase& case_;
  const int rank_;
  const int size_;
  comm::Batch* const batch_;
  std::span<std::byte> room_;        // what is left of it
  std::unique_ptr<Memory> in_;       // null: the call has none here, or it is in place
  std::unique_ptr<Memory> out_;      // null: the call has none here
  std::vector<std::byte> input_;     // what `in_` held
  std::vector<std::byte> expected_;  // of `out_`
  runtime::Work work_;
};

// "" or what is wrong.
std::string RunCase(comm::Communicator& communicator, const CollectiveCase& the_case);

// Cases for groups of `size` ranks: every collective and registered algorithm, counts around the edges, in place and
// not, types, ops and roots in turn; all types with all ops for some. With a number of ranks on each node but the last,
// every composition of two levels that fits, too.
std::vector<CollectiveCase> ConformanceCases(int size, uint64_t salt, int ranks_per_node);

}  // namespace cohort::testing
