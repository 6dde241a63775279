// A transport moves bytes between two ranks over ordered links. It knows nothing of collectives: the plan runner tells
// both sides how long every message is, so there is no matching and no unexpected length; only the signature of the
// operation is compared, before any user memory is touched.
//
// All calls are made by the engine's owner. Nothing blocks: Try* are called again until they say kDone or kFailed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/reduce/reduce_kernel.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

enum class Progress : uint8_t {
  kDone,     // finished: memory may be reused (sends), or data is in place (receives)
  kMoved,    // something moved, not finished
  kBlocked,  // nothing could be done now
  kFailed,   // see the operation's `error`
};

// One message under way. The runner fills the upper part and keeps the object in place until it is kDone or kFailed.
struct SendOperation {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t signature = 0;                     // of the operation; sent along
  const runtime::CallRecord* call = nullptr;  // the operation's record: for transports that have room to send it

  // The transport's own progress; zero at first.
  size_t moved = 0;
  void* state = nullptr;
  absl::Status error;
};

struct RecvOperation {
  std::byte* data = nullptr;           // where the result goes
  const std::byte* operand = nullptr;  // with `reduce`: the other operand (may equal data)
  ReduceKernel reduce = nullptr;       // null: plain copy
  size_t element_bytes = 1;            // reductions act on whole elements
  bool incoming_first = false;         // reduce(dst, incoming, operand) instead of reduce(dst, operand, incoming)
  size_t bytes = 0;
  uint64_t signature = 0;  // what the message must carry
  const runtime::CallRecord* call = nullptr;

  size_t moved = 0;
  void* state = nullptr;
  absl::Status error;
  // Set with kFailed when the peer's message belongs to another call: its signature, and its record if it came along.
  bool mismatch = false;
  uint64_t peer_signature = 0;
  runtime::CallRecord peer_call;
};

// Messages of at most this many bytes are moved within about a microsecond, once they can be.
inline constexpr size_t kMostShortBytes = 1024;

// No link or fan-out takes longer messages of calls that run in the caller's thread.
inline constexpr size_t kMostInlineBytes = 8 * 1024;

// How messages of calls that run in the caller's thread (run/inline_run.h) use a link or a fan-out.
struct InlineTerms {
  size_t most_bytes = 0;  // of a message, at most kMostInlineBytes; 0: such calls do not use it
  // The cost of a look for a message that is not there, in looks into shared memory (about 25 ns with a pause).
  int look_cost = 1;
  bool calls_kernel = false;  // a message takes a system call, which the record of a call should count as time
};

// Names one ordered pair of byte streams, one in each direction.
struct LinkSpec {
  uint64_t group = 0;
  uint32_t epoch = 0;
  int32_t peer_world_rank = 0;  // of the other side
  uint16_t lane = 0;            // collective lanes from 0; kPointToPointLane for send/recv
};
inline constexpr uint16_t kPointToPointLane = 0xffff;

class Link {
 public:
  // Abandons what is under way: the transport never again touches the operations that were tried on this link, nor
  // their memory. (Links are destroyed early when their group fails, so that users may free their buffers.)
  virtual ~Link() = default;
  // To another node, messages may be done before the peer has asked for them, but not with more than
  // runtime::kMostBufferedBytes on one link (runtime/segment/wait_graph.h): a sender that waits with more is certain to
  // wait for its receiver. Every transport asserts that of its limits.
  // Messages of one direction are sent, and received, in the order in which their first Try call was made; a later
  // message may be tried while an earlier one is unfinished (it is then kBlocked until its turn).
  virtual Progress TrySend(SendOperation& operation) = 0;
  virtual Progress TryRecv(RecvOperation& operation) = 0;
  // TrySend that may leave a sleeping reader asleep until Wake, which the caller calls soon.
  virtual Progress TrySendQuietly(SendOperation& operation) { return TrySend(operation); }
  virtual void Wake() {}
  // A message of `bytes` bytes will probably be the next to be sent. Called when there is nothing else to do.
  virtual void Prepare(size_t bytes) { (void)bytes; }
  virtual InlineTerms inline_terms() const { return {}; }
  // Whether what comes before its receive has been tried costs a copy here: receives should then be tried as early as
  // their memory is free.
  virtual bool wants_early_receives() const { return false; }
};

// One writer, all other members read: what kPublish and published receives run on.
struct FanoutSpec {
  uint64_t group = 0;
  uint32_t epoch = 0;
  int32_t group_rank = 0;
  std::vector<int32_t> world_ranks;  // by group rank
  uint16_t lane = 0;
};
class MemoryAccess;
class Fanout {
 public:
  virtual ~Fanout() = default;  // abandons, as a link does
  virtual Progress TryPublish(SendOperation& operation) = 0;
  // TryPublish that may leave sleeping readers asleep until Wake, which the caller calls soon, after work that needs
  // not wait for the message to be on its way. Operation::call need not be complete yet.
  virtual Progress TryPublishQuietly(SendOperation& operation) { return TryPublish(operation); }
  virtual void Wake() {}
  virtual Progress TryRecv(int32_t peer, RecvOperation& operation) = 0;
  // The longest message that may be published, in bytes; longer ones go as sends (all members decide alike).
  virtual size_t max_bytes() const = 0;
  // As of Link.
  virtual void Prepare(size_t bytes) { (void)bytes; }
  virtual InlineTerms inline_terms() const { return {}; }
  // How the members reach each other's memory (memory_access.h); lives as long as the fan-out. Null where they can't;
  // all members get the same kind of answer.
  virtual MemoryAccess* memory() { return nullptr; }
};

class Transport : public runtime::ProgressSource {
 public:
  virtual std::string_view name() const = 0;
  // True when this transport can connect this process to `world_rank`. A pure function of the identities.
  virtual bool Reaches(int world_rank) const = 0;
  // Makes this side of a link. Local: the other side may come later, and messages wait for it. kUnavailable and
  // kResourceExhausted with the cause.
  virtual absl::StatusOr<std::unique_ptr<Link>> Connect(const LinkSpec& spec) = 0;
  // A fan-out for the whole group, or kUnimplemented: the runner then publishes by sends over links.
  virtual absl::StatusOr<std::unique_ptr<Fanout>> ConnectFanout(const FanoutSpec& spec) {
    (void)spec;
    return absl::UnimplementedError("no fan-out");
  }
  // A group has ended or failed here: its links that were not made yet never will be, and what came for them, or comes
  // later, need not be kept. Links that were made are left to their owners.
  virtual void OnGroupEnd(uint64_t group, uint32_t epoch) { (void)group, (void)epoch; }
  // A peer is gone: complete everything on links to it with `status`.
  virtual void OnPeerLost(int world_rank, const absl::Status& status) = 0;
};

}  // namespace cohort::comm
