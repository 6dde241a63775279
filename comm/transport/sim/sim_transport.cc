#include "cohort/comm/transport/sim/sim_transport.h"

#include <algorithm>
#include <compare>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/transport/memory_access.h"

namespace cohort::comm {
namespace {

// One message under way. `data` is the sender's memory until it is copied into `copy`; null once the sender is gone.
struct Message {
  const std::byte* data = nullptr;
  std::vector<std::byte> copy;
  size_t bytes = 0;
  uint64_t signature = 0;
  runtime::CallRecord call;
  uint64_t arrives = 0;
  bool consumed = false;
};

// One direction of a link, or of a fan-out to one reader.
struct Stream {
  std::deque<std::shared_ptr<Message>> messages;
  size_t copied_bytes = 0;
  const RecvOperation* receiving = nullptr;  // the receive that was tried first and is not finished
};

struct StreamKey {
  uint64_t group = 0;
  uint32_t epoch = 0;
  uint16_t lane = 0;
  bool fanout = false;
  int32_t from = 0;  // world ranks
  int32_t to = 0;
  auto operator<=>(const StreamKey&) const = default;
};

// The messages of a send or publish under way; owned by its link.
struct Sent {
  std::vector<std::shared_ptr<Message>> messages;
};

}  // namespace

struct SimNetwork::State {
  SimOptions options;
  uint64_t random = 0;
  uint64_t now = 0;
  std::map<StreamKey, Stream> streams;
  std::map<std::pair<int, int>, absl::Status> lost;  // (who was told, who is gone)
  std::set<StreamKey> closed;                        // fan-outs that have ended; `to` is -1

  uint64_t Draw(uint64_t bound) {  // splitmix64
    random += 0x9e3779b97f4a7c15u;
    uint64_t z = random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return bound == 0 ? 0 : z % bound;
  }

  std::shared_ptr<Message> Post(Stream& stream, const SendOperation& operation) {
    auto message = std::make_shared<Message>();
    message->data = operation.data;
    message->bytes = operation.bytes;
    message->signature = operation.signature;
    if (options.carry_calls && operation.call != nullptr) message->call = *operation.call;
    message->arrives = now + Draw(static_cast<uint64_t>(options.max_delay) + 1);
    stream.messages.push_back(message);
    return message;
  }

  static void Copy(Stream& stream, Message& message) {
    if (message.bytes > 0) message.copy.assign(message.data, message.data + message.bytes);
    message.data = message.copy.data();
    stream.copied_bytes += message.bytes;
  }

  Progress Receive(Stream& stream, RecvOperation& operation);
  Progress Move(Stream& stream, Message& message, RecvOperation& operation);
};

namespace {

Progress Lost(const SimNetwork::State& state, int self, int peer, absl::Status* error) {
  const auto lost = state.lost.find({self, peer});
  if (lost == state.lost.end()) return Progress::kBlocked;
  *error = lost->second;
  return Progress::kFailed;
}

class SimLink : public Link {
 public:
  SimLink(SimNetwork::State* state, int self, const LinkSpec& spec) : state_(state), self_(self) {
    out_ = {spec.group, spec.epoch, spec.lane, false, self, spec.peer_world_rank};
    in_ = {spec.group, spec.epoch, spec.lane, false, spec.peer_world_rank, self};
  }
  ~SimLink() override {
    for (const auto& sent : sent_) {
      for (const auto& message : sent->messages) {
        if (message->copy.empty()) message->data = nullptr;
      }
    }
    state_->streams[in_].receiving = nullptr;
  }

  Progress TrySend(SendOperation& operation) override {
    if (Lost(*state_, self_, out_.to, &operation.error) == Progress::kFailed) return Progress::kFailed;
    Stream& stream = state_->streams[out_];
    if (operation.state == nullptr) {
      auto sent = std::make_unique<Sent>();
      sent->messages.push_back(state_->Post(stream, operation));
      operation.state = sent.get();
      sent_.push_back(std::move(sent));
    }
    Message& message = *static_cast<Sent*>(operation.state)->messages[0];
    const bool eager = operation.bytes <= state_->options.eager_bytes &&
                       stream.copied_bytes + operation.bytes <= state_->options.window_bytes;
    if (!message.consumed) {
      if (!eager) return Progress::kBlocked;
      SimNetwork::State::Copy(stream, message);
    }
    std::erase_if(sent_, [&](const auto& sent) { return sent.get() == operation.state; });
    return Progress::kDone;
  }

  Progress TryRecv(RecvOperation& operation) override {
    if (Lost(*state_, self_, in_.from, &operation.error) == Progress::kFailed) return Progress::kFailed;
    return state_->Receive(state_->streams[in_], operation);
  }

 private:
  SimNetwork::State* const state_;
  const int self_;
  StreamKey out_;
  StreamKey in_;
  std::vector<std::unique_ptr<Sent>> sent_;
};

// All ranks live in this process: addresses are good everywhere.
class SimMemory : public MemoryAccess {
 public:
  SimMemory(SimNetwork::State* state, const FanoutSpec& spec) : state_(state), spec_(spec) {
    state_->closed.erase(KeyOf(spec_.group_rank));
  }
  ~SimMemory() override { state_->closed.insert(KeyOf(spec_.group_rank)); }

  MemoryName NameOf(const void* data, size_t bytes) override {
    (void)bytes;
    return {.place = reinterpret_cast<uintptr_t>(data), .shared = state_->Draw(2)};
  }
  Progress ReachesPrivate(bool* reaches, int* waiting_for) override {
    (void)waiting_for;
    *reaches = state_->options.access == SimAccess::kMixed;
    return Progress::kDone;
  }
  std::byte* Resolve(int peer, const MemoryName& name, size_t bytes) override {
    (void)peer, (void)bytes;
    return reinterpret_cast<std::byte*>(name.place);  // NOLINT: was an address
  }
  bool Enter() override {
    for (int member = 0; member < static_cast<int>(spec_.world_ranks.size()); ++member) {
      if (member != spec_.group_rank && state_->closed.contains(KeyOf(member))) return false;
    }
    return true;
  }
  bool Leave() override { return true; }  // nobody else runs while this rank is inside
  Progress Read(int peer, uint64_t address, std::byte* to, size_t bytes, absl::Status* error) override {
    (void)peer, (void)error;
    std::memcpy(to, reinterpret_cast<const std::byte*>(address), bytes);  // NOLINT
    return Progress::kDone;
  }
  Progress Write(int peer, uint64_t address, const std::byte* from, size_t bytes, absl::Status* error) override {
    (void)peer, (void)error;
    std::memcpy(reinterpret_cast<std::byte*>(address), from, bytes);  // NOLINT
    return Progress::kDone;
  }
  size_t piece_bytes() const override { return state_->options.chunk_bytes; }

 private:
  StreamKey KeyOf(int member) const {
    return {spec_.group, spec_.epoch, spec_.lane, true, spec_.world_ranks[static_cast<size_t>(member)], -1};
  }

  SimNetwork::State* const state_;
  const FanoutSpec spec_;
};

class SimFanout : public Fanout {
 public:
  SimFanout(SimNetwork::State* state, const FanoutSpec& spec) : state_(state), spec_(spec), memory_(state, spec) {}

  Progress TryPublish(SendOperation& operation) override {
    const int self = Self();
    for (const int32_t reader : spec_.world_ranks) {
      if (Lost(*state_, self, reader, &operation.error) == Progress::kFailed) return Progress::kFailed;
    }
    for (const int32_t reader : spec_.world_ranks) {
      if (reader == self) continue;
      const auto& messages = state_->streams[KeyOf(self, reader)].messages;
      if (messages.size() >= static_cast<size_t>(state_->options.fanout_slots)) return Progress::kBlocked;
    }
    for (const int32_t reader : spec_.world_ranks) {
      if (reader == self) continue;
      Stream& stream = state_->streams[KeyOf(self, reader)];
      SimNetwork::State::Copy(stream, *state_->Post(stream, operation));
    }
    return Progress::kDone;
  }

  Progress TryRecv(int32_t peer, RecvOperation& operation) override {
    const int32_t from = spec_.world_ranks[static_cast<size_t>(peer)];
    if (Lost(*state_, Self(), from, &operation.error) == Progress::kFailed) return Progress::kFailed;
    return state_->Receive(state_->streams[KeyOf(from, Self())], operation);
  }

  size_t max_bytes() const override { return state_->options.fanout_bytes; }
  MemoryAccess* memory() override { return state_->options.access == SimAccess::kNone ? nullptr : &memory_; }

 private:
  int Self() const { return spec_.world_ranks[static_cast<size_t>(spec_.group_rank)]; }
  StreamKey KeyOf(int from, int to) const { return {spec_.group, spec_.epoch, spec_.lane, true, from, to}; }

  SimNetwork::State* const state_;
  const FanoutSpec spec_;
  SimMemory memory_;
};

class SimTransport : public Transport {
 public:
  SimTransport(SimNetwork::State* state, int self, std::function<void()> on_poll)
      : state_(state), self_(self), on_poll_(std::move(on_poll)) {}

  std::string_view name() const override { return "sim"; }
  bool Reaches(int) const override { return true; }
  absl::StatusOr<std::unique_ptr<Link>> Connect(const LinkSpec& spec) override {
    return std::make_unique<SimLink>(state_, self_, spec);
  }
  absl::StatusOr<std::unique_ptr<Fanout>> ConnectFanout(const FanoutSpec& spec) override {
    if (state_->options.fanout_bytes == 0) return absl::UnimplementedError("no fan-out in this simulation");
    return std::make_unique<SimFanout>(state_, spec);
  }
  void OnPeerLost(int world_rank, const absl::Status& status) override {
    state_->lost.emplace(std::pair(self_, world_rank), status);
  }

  bool Poll() override {
    if (on_poll_) on_poll_();
    return false;
  }
  bool Active() const override { return false; }
  // Never asleep: whatever this rank waits for happens while others run.
  int Arm(bool* ready) override {
    *ready = true;
    return -1;
  }

 private:
  SimNetwork::State* const state_;
  const int self_;
  const std::function<void()> on_poll_;
};

}  // namespace

Progress SimNetwork::State::Receive(Stream& stream, RecvOperation& operation) {
  if (stream.receiving == nullptr) stream.receiving = &operation;
  if (stream.receiving != &operation || stream.messages.empty()) return Progress::kBlocked;
  Message& message = *stream.messages.front();
  if (message.arrives > now) return Progress::kBlocked;
  if (message.signature != operation.signature) {
    operation.mismatch = true;
    operation.peer_signature = message.signature;
    operation.peer_call = message.call;
    operation.error = absl::FailedPreconditionError("the message belongs to another call");
    return Progress::kFailed;
  }
  if (message.bytes != operation.bytes) {
    operation.error = absl::InternalError("a message of " + std::to_string(message.bytes) + " bytes came where " +
                                          std::to_string(operation.bytes) + " were due");
    return Progress::kFailed;
  }
  if (message.bytes > 0 && message.data == nullptr) return Progress::kBlocked;  // the sender went in the middle
  return Move(stream, message, operation);
}

Progress SimNetwork::State::Move(Stream& stream, Message& message, RecvOperation& operation) {
  const size_t element = operation.element_bytes;
  const size_t left = (message.bytes - operation.moved) / element;
  const size_t most = std::max<size_t>(1, options.chunk_bytes / element);
  const size_t elements = std::min<size_t>(left, left == 0 ? 0 : 1 + Draw(most));
  const size_t bytes =
      operation.reduce == nullptr && left <= most ? message.bytes - operation.moved : elements * element;
  const size_t at = operation.moved;
  if (bytes > 0 && operation.reduce == nullptr) {
    std::memcpy(operation.data + at, message.data + at, bytes);
  } else if (bytes > 0 && operation.incoming_first) {
    operation.reduce(operation.data + at, message.data + at, operation.operand + at, elements);
  } else if (bytes > 0) {
    operation.reduce(operation.data + at, operation.operand + at, message.data + at, elements);
  }
  operation.moved += bytes;
  if (operation.moved < message.bytes) return Progress::kMoved;
  message.consumed = true;
  if (!message.copy.empty()) stream.copied_bytes -= message.bytes;
  stream.messages.pop_front();
  stream.receiving = nullptr;
  return Progress::kDone;
}

SimNetwork::SimNetwork(const SimOptions& options) : state_(std::make_unique<State>()) {
  state_->options = options;
  state_->random = options.seed;
}
SimNetwork::~SimNetwork() = default;

std::unique_ptr<Transport> SimNetwork::MakeTransport(int world_rank, std::function<void()> on_poll) {
  return std::make_unique<SimTransport>(state_.get(), world_rank, std::move(on_poll));
}

void SimNetwork::Tick() { ++state_->now; }
uint64_t SimNetwork::Draw(uint64_t bound) { return state_->Draw(bound); }

}  // namespace cohort::comm
