#include "cohort/python/module/messages.h"

#include <atomic>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace cohort::python {
namespace {

// Headers that a receive from anyone asked for stay asked for when another rank's message came.
constexpr std::chrono::hours kForever{24 * 365};

std::string Bytes(int64_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

// Done when both the header and the payload are sent.
class Messages::SendState final : public runtime::WorkState, public runtime::WorkListener {
 public:
  SendState(runtime::Engine& engine, Header header, int parts)
      : runtime::WorkListener(false), header(header), engine_(engine), left_(parts) {}
  void OnDone(const absl::Status& status) override {
    if (first_error_.ok()) first_error_ = status;
    if (--left_ == 0) CompleteAndDrop(std::move(first_error_));
  }
  Header header;

 private:
  void Wait(runtime::Deadline deadline) override {
    engine_.DriveUntil([this] { return done(); }, deadline);
  }
  runtime::Engine& engine_;
  int left_;
  absl::Status first_error_;
};

class Messages::ReceiveState final : public runtime::WorkState {
 public:
  ReceiveState(runtime::Engine& engine, const comm::Buffer& out, int peer, int64_t tag, Options options,
               std::shared_ptr<std::atomic<int>> source)
      : out(out), peer(peer), tag(tag), options(std::move(options)), source(std::move(source)), engine_(engine) {}
  void End(absl::Status status) { CompleteAndDrop(std::move(status)); }
  int64_t bytes() const { return out.count * static_cast<int64_t>(comm::SizeOf(out.dtype)); }

  const comm::Buffer out;
  const int peer;
  const int64_t tag;
  const Options options;
  const std::shared_ptr<std::atomic<int>> source;

 private:
  void Wait(runtime::Deadline deadline) override {
    engine_.DriveUntil([this] { return done(); }, deadline);
  }
  runtime::Engine& engine_;
};

// A payload on its way, or here before its receive.
class Messages::Payload final : public runtime::WorkListener {
 public:
  Payload(Messages& messages, int peer, const Header& header) : peer(peer), header(header), messages_(messages) {}
  void OnDone(const absl::Status& status) override { messages_.PayloadArrived(this, status); }

  const int peer;
  const Header header;
  std::unique_ptr<char[]> storage;  // null: it goes into the receive's memory
  ReceiveState* receive = nullptr;  // with its reference
  bool here = false;

 private:
  Messages& messages_;
};

// The header that is awaited from one peer.
class Messages::Inbox final : public runtime::WorkListener {
 public:
  Inbox(Messages& messages, int peer) : messages_(messages), peer_(peer) {}
  void OnDone(const absl::Status&) override {
    messages_.HeaderArrived(peer_);
    messages_.TakeHeaders(peer_);
  }
  Header header;
  std::optional<runtime::Work> awaited;

 private:
  Messages& messages_;
  const int peer_;
};

Messages::Messages(runtime::Engine& engine, std::unique_ptr<comm::Communicator> communicator)
    : engine_(engine), communicator_(std::move(communicator)) {
  for (int peer = 0; peer < communicator_->size(); ++peer) inboxes_.push_back(std::make_unique<Inbox>(*this, peer));
}

Messages::~Messages() {
  if (!forks_.InChild()) {
    runtime::EngineLock lock(engine_);
    closing_ = true;
    FailAll(absl::CancelledError("the group of this receive was destroyed before a message came"));
  }
  communicator_.reset();
}

runtime::Work Messages::Send(const comm::ConstBuffer& in, int peer, int64_t tag, const Options& options) {
  if (forks_.InChild()) return runtime::Work::Finished(communicator_->status());
  runtime::EngineLock lock(engine_);
  comm::CallOptions call;
  call.timeout = options.timeout;
  const auto bytes = in.count * static_cast<int64_t>(comm::SizeOf(in.dtype));
  auto* const state = new SendState(engine_, {tag, bytes, static_cast<int64_t>(in.dtype)}, bytes > 0 ? 2 : 1);
  runtime::Work work(state);
  state->AddReference();  // CompleteAndDrop's
  const comm::ConstBuffer header(&state->header, sizeof state->header, comm::DataType::kUint8);
  // Two listeners of one object would need two links: the first listener is told of the second part by a function.
  if (bytes > 0) {
    runtime::Work first = communicator_->Send(header, peer, call, options.site);
    runtime::Work payload = communicator_->Send(in, peer, call, options.site);
    first.Then([state](const absl::Status& status) { state->OnDone(status); });
    payload.Notify(state);
  } else {
    communicator_->Send(header, peer, call, options.site).Notify(state);
  }
  return work;
}

runtime::Work Messages::Receive(const comm::Buffer& out, int peer, int64_t tag, const Options& options,
                                std::shared_ptr<std::atomic<int>> source) {
  if (forks_.InChild()) return runtime::Work::Finished(communicator_->status());
  runtime::EngineLock lock(engine_);
  if (peer != kAnyone && (peer < 0 || peer >= communicator_->size())) {
    return runtime::Work::Finished(absl::InvalidArgumentError(
        "recv: there is no rank " + std::to_string(peer) + " in a group of " + std::to_string(communicator_->size())));
  }
  auto* const state = new ReceiveState(engine_, out, peer, tag, options, std::move(source));
  runtime::Work work(state);
  state->AddReference();  // End's
  for (auto& payload : payloads_) {
    if (payload->receive != nullptr || payload->header.tag != tag || !Wants(*state, payload->peer)) continue;
    Match(*payload, state);
    return work;
  }
  posted_.push_back(state);
  const int first = peer == kAnyone ? 0 : peer;
  const int last = peer == kAnyone ? communicator_->size() - 1 : peer;
  for (int from = first; from <= last; ++from) TakeHeaders(from);
  return work;
}

bool Messages::Wants(const ReceiveState& receive, int peer) { return receive.peer == kAnyone || receive.peer == peer; }

bool Messages::Wanted(int peer) const {
  for (const ReceiveState* receive : posted_) {
    if (Wants(*receive, peer)) return true;
  }
  return false;
}

void Messages::TakeHeaders(int peer) {
  Inbox& inbox = *inboxes_[static_cast<size_t>(peer)];
  while (!closing_ && !inbox.awaited.has_value() && Wanted(peer)) {
    comm::CallOptions call;
    call.timeout = kForever;
    std::source_location site = {};
    for (const ReceiveState* receive : posted_) {
      if (!Wants(*receive, peer)) continue;
      if (receive->peer == peer) call.timeout = receive->options.timeout;
      site = receive->options.site;
      break;
    }
    inbox.awaited =
        communicator_->Recv(comm::Buffer(&inbox.header, sizeof inbox.header, comm::DataType::kUint8), peer, call, site);
    if (!inbox.awaited->Done()) return inbox.awaited->Notify(&inbox);
    HeaderArrived(peer);
  }
}

void Messages::HeaderArrived(int peer) {
  Inbox& inbox = *inboxes_[static_cast<size_t>(peer)];
  const absl::Status status = inbox.awaited->status();
  inbox.awaited.reset();
  if (!status.ok()) return FailAll(status);  // the group has failed
  const Header header = inbox.header;
  const auto dtype = static_cast<comm::DataType>(header.dtype);
  const auto element =
      header.dtype > 0 && header.dtype < comm::kDataTypes ? static_cast<int64_t>(comm::SizeOf(dtype)) : int64_t{0};
  if (element == 0 || header.bytes < 0 || header.bytes % element != 0) {
    communicator_->Abort("a message's header makes no sense: was something else than a message sent to this group?");
    return FailAll(communicator_->status());
  }
  auto payload = std::make_unique<Payload>(*this, peer, header);
  for (auto at = posted_.begin(); at != posted_.end(); ++at) {
    if ((*at)->tag != header.tag || !Wants(**at, peer)) continue;
    payload->receive = *at;
    posted_.erase(at);
    break;
  }
  StartPayload(peer, std::move(payload));
}

void Messages::StartPayload(int peer, std::unique_ptr<Payload> payload) {
  const Header& header = payload->header;
  void* target = payload->receive == nullptr ? nullptr : payload->receive->out.data;
  if (payload->receive == nullptr || payload->receive->bytes() != header.bytes) {
    payload->storage.reset(new (std::nothrow) char[static_cast<size_t>(header.bytes)]);
    if (payload->storage == nullptr) {
      communicator_->Abort("no memory for a message of " + Bytes(header.bytes) + " that no receive was posted for");
      if (payload->receive != nullptr) posted_.push_back(payload->receive);
      return FailAll(communicator_->status());
    }
    target = payload->storage.get();
  }
  Payload* const raw = payload.get();
  payloads_.push_back(std::move(payload));
  if (header.bytes == 0) return PayloadArrived(raw, absl::OkStatus());
  const auto dtype = static_cast<comm::DataType>(header.dtype);
  comm::CallOptions call;
  std::source_location site = {};
  if (raw->receive != nullptr) {
    call.timeout = raw->receive->options.timeout;
    site = raw->receive->options.site;
  }
  const comm::Buffer out(target, header.bytes / static_cast<int64_t>(comm::SizeOf(dtype)), dtype);
  communicator_->Recv(out, peer, call, site).Notify(raw);
}

void Messages::PayloadArrived(Payload* payload, const absl::Status& status) {
  if (!status.ok()) {
    if (payload->receive != nullptr) std::exchange(payload->receive, nullptr)->End(status);
    payloads_.remove_if([payload](const auto& listed) { return listed.get() == payload; });
    return FailAll(status);
  }
  payload->here = true;
  if (payload->receive != nullptr) Match(*payload, std::exchange(payload->receive, nullptr));
}

// Gives a payload to a receive, now or when it is here.
void Messages::Match(Payload& payload, ReceiveState* receive) {
  if (!payload.here) {
    payload.receive = receive;
    return;
  }
  const int64_t bytes = payload.header.bytes;
  receive->source->store(payload.peer, std::memory_order_relaxed);
  absl::Status status;
  if (bytes != receive->bytes()) {
    status = absl::FailedPreconditionError("recv: rank " + std::to_string(payload.peer) + " of the group sent " +
                                           Bytes(bytes) + " with tag " + std::to_string(payload.header.tag) +
                                           ", and this receive has room for exactly " + Bytes(receive->bytes()) +
                                           ": both sides pass tensors of one size");
  } else if (payload.storage != nullptr && bytes > 0) {
    std::memcpy(receive->out.data, payload.storage.get(), static_cast<size_t>(bytes));
  }
  payloads_.remove_if([&payload](const auto& listed) { return listed.get() == &payload; });
  receive->End(std::move(status));
}

void Messages::FailAll(const absl::Status& status) {
  std::list<ReceiveState*> receives;
  receives.swap(posted_);
  for (ReceiveState* receive : receives) receive->End(status);
}

}  // namespace cohort::python
