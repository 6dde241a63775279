#include "cohort/launcher/rpc/client_stream.h"

#include <algorithm>
#include <utility>

#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/control/standby/rendezvous_copy.h"
#include "cohort/launcher/rpc/grpc_settings.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Waking this much later than asked means that this process was stopped: no verdict then.
constexpr milliseconds kOwnStall{500};
// How long gRPC may take to give a cancelled call up.
constexpr milliseconds kCancelTimeout{2000};
constexpr milliseconds kAskWhetherGivenUp{100};
// The limit of a batch. A message costs both sides some 0.1 ms, however short it is.
constexpr size_t kMaxBatchBytes = 64 << 10;

std::shared_ptr<grpc::Channel> Dial(const std::string& address, const TlsIdentity& identity) {
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = identity.ca_certificate;
  tls.pem_private_key = identity.private_key;
  tls.pem_cert_chain = identity.certificate;
  grpc::ChannelArguments arguments = DirectChannel();
  arguments.SetSslTargetNameOverride(kRendezvousName);  // its certificate names its role, not its address
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(tls), arguments);
}

}  // namespace

RendezvousClient::Stream::Stream(std::string address, const TlsIdentity& identity, Callbacks callbacks)
    : address_(std::move(address)),
      stub_(v1::Rendezvous::NewStub(Dial(address_, identity))),
      callbacks_(std::move(callbacks)) {}

RendezvousClient::Stream::~Stream() {
  if (watcher_.joinable()) watcher_.join();
}

absl::Status RendezvousClient::Stream::Open(const v1::NodeOffer& offer, bool counts, runtime::Deadline deadline,
                                            const std::function<bool()>& given_up) {
  stub_->async()->Join(&context_, this);
  const runtime::MutexLock lock(mutex_);
  self_ = shared_from_this();
  AddHold();
  held_ = true;
  lease_ = Lease(Clock::now());
  next_beat_ = Clock::now();
  counts_ = counts;
  taken_ = offer.resume().taken();
  v1::FromAgent join;
  *join.mutable_join() = offer;
  queued_bytes_ = join.ByteSizeLong();
  outgoing_.push_back(std::move(join));
  WriteNext();
  StartRead(&incoming_);
  StartCall();
  while (!let_in_ && !ended_.has_value()) {
    const auto pause = std::min<std::chrono::nanoseconds>(deadline.left(), kAskWhetherGivenUp);
    if (changed_.Wait(mutex_, runtime::Deadline::After(pause))) continue;
    mutex_.Unlock();  // who is asked may take their time
    const bool away = given_up && given_up();
    mutex_.Lock();
    if (let_in_ || ended_.has_value() || (!away && !deadline.passed())) continue;
    context_.TryCancel();
    DropHold();
    AwaitEnd();
    if (away) return absl::AbortedError("the rendezvous at " + address_ + " is not to be joined any more");
    return absl::DeadlineExceededError("the rendezvous at " + address_ + " did not answer in time");
  }
  if (!let_in_) return ToAbsl(*ended_);
  watcher_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

absl::Status RendezvousClient::Stream::Send(const v1::FromAgent& message) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes > static_cast<size_t>(kMaxMessageBytes)) {
    return absl::InvalidArgumentError("a message of " + std::to_string(bytes) + " bytes is larger than the limit of " +
                                      std::to_string(kMaxMessageBytes));
  }
  const runtime::MutexLock lock(mutex_);
  if (leaving_ || !held_ || ended_.has_value()) {
    return absl::UnavailableError("the stream to the rendezvous at " + address_ + " has ended");
  }
  if (queued_bytes_ + bytes > kMaxQueuedBytes) {
    return absl::ResourceExhaustedError("the rendezvous at " + address_ + " takes messages too slowly: " +
                                        std::to_string(queued_bytes_ >> 20) + " MiB wait");
  }
  queued_bytes_ += bytes;
  outgoing_.push_back(message);
  if (!writing_) WriteNext();
  return absl::OkStatus();
}

void RendezvousClient::Stream::WriteNext() {
  writing_ = true;
  size_t bytes = 0;
  size_t count = 0;
  while (count < outgoing_.size()) {
    const size_t more = outgoing_[count].ByteSizeLong();
    if (count > 0 && bytes + more > kMaxBatchBytes) break;
    bytes += more;
    ++count;
  }
  written_bytes_ = bytes;
  written_.Clear();
  for (size_t i = 0; i < count; ++i) {
    v1::FromAgent& place = count == 1 ? written_ : *written_.mutable_batch()->add_messages();
    place = std::move(outgoing_.front());
    outgoing_.pop_front();
  }
  StartWrite(&written_);
}

// Without the hold gRPC ends the call once nothing is under way.
void RendezvousClient::Stream::DropHold() {
  if (!held_) return;
  held_ = false;
  RemoveHold();
}

void RendezvousClient::Stream::OnReadInitialMetadataDone(bool ok) {
  const runtime::MutexLock lock(mutex_);
  let_in_ = ok;
  changed_.NotifyAll();
}

void RendezvousClient::Stream::OnReadDone(bool ok) {
  bool deliver = false;
  {
    const runtime::MutexLock lock(mutex_);
    if (!ok) {
      DropHold();
      return;
    }
    if (incoming_.has_beat()) lease_.OnAnswer(incoming_.beat().number());
    told_the_end_ |= incoming_.has_report() || incoming_.has_refused();
    deliver = (!incoming_.has_beat() || incoming_.beat().taken() > 0) && !incoming_.has_nodes();
    if (Counts(incoming_) && deliver) {
      taken_ += incoming_.has_assignment() && !incoming_.assignment().same_nodes() ? 2 : 1;  // with its table
    }
  }
  if (incoming_.has_nodes()) nodes_ = std::move(*incoming_.mutable_nodes());
  if (incoming_.has_assignment()) incoming_.mutable_assignment()->mutable_nodes()->Swap(nodes_.mutable_nodes());
  if (deliver) {
    const runtime::MutexLock lock(callback_mutex_);
    if (callbacks_.on_message) callbacks_.on_message(std::move(incoming_));
  }
  incoming_.Clear();
  StartRead(&incoming_);
}

void RendezvousClient::Stream::OnWriteDone(bool ok) {
  const runtime::MutexLock lock(mutex_);
  queued_bytes_ -= written_bytes_;
  writing_ = false;
  if (!ok) {
    DropHold();
  } else if (!outgoing_.empty()) {
    WriteNext();
  } else if (leaving_ && held_) {
    StartWritesDone();
    changed_.NotifyAll();
  }
}

absl::Status RendezvousClient::Stream::WhyEnded(const grpc::Status& status) const {
  if (told_the_end_) return absl::OkStatus();
  if (silent_) return absl::UnavailableError("the rendezvous at " + address_ + " was silent for 3.4 s");
  if (status.ok()) return absl::UnavailableError("the rendezvous at " + address_ + " ended the stream");
  const absl::Status cause = ToAbsl(status);
  return absl::Status(cause.code(), "the rendezvous at " + address_ + " is gone: " + std::string(cause.message()));
}

void RendezvousClient::Stream::OnDone(const grpc::Status& status) {
  absl::Status why;
  bool report = false;
  {
    const runtime::MutexLock lock(mutex_);
    why = WhyEnded(status);
    report = let_in_;
  }
  if (report) {
    const runtime::MutexLock lock(callback_mutex_);
    if (callbacks_.on_lost) callbacks_.on_lost(why);
    callbacks_ = {};
  }
  const runtime::MutexLock lock(mutex_);
  ended_ = status;
  if (!abandoned_) self_.reset();  // not the last: the owner waits
  changed_.NotifyAll();
}

bool RendezvousClient::Stream::AwaitEnd() {
  const runtime::Deadline limit = runtime::Deadline::After(kCancelTimeout);
  while (!ended_.has_value() && changed_.Wait(mutex_, limit)) {
  }
  abandoned_ = !ended_.has_value();
  return !abandoned_;
}

void RendezvousClient::Stream::Watch() {
  const runtime::MutexLock lock(mutex_);
  while (!ended_.has_value()) {
    const Clock::time_point due = silent_ ? next_beat_ : std::min(next_beat_, lease_.End());
    if (changed_.Wait(mutex_, runtime::Deadline(due))) continue;
    const Clock::time_point now = Clock::now();
    if (now > due + kOwnStall) lease_.GiveSecondChance(now);  // answers may not have been read yet
    if (now >= lease_.End() && !silent_) {
      silent_ = true;
      context_.TryCancel();
    }
    if (now < next_beat_) continue;
    next_beat_ = now + kBeatInterval;
    if (!held_ || leaving_) continue;
    v1::FromAgent beat;
    beat.mutable_beat()->set_number(lease_.NextBeat(now));
    if (counts_) beat.mutable_beat()->set_taken(taken_);
    queued_bytes_ += beat.ByteSizeLong();
    outgoing_.push_back(std::move(beat));
    if (!writing_) WriteNext();
  }
}

void RendezvousClient::Stream::Shut(runtime::Deadline grace) {
  {
    const runtime::MutexLock lock(callback_mutex_);  // waits for a callback under way
    callbacks_ = {};
  }
  {
    const runtime::MutexLock lock(mutex_);
    leaving_ = true;
    if (held_ && !writing_ && !ended_.has_value()) StartWritesDone();
    while (!ended_.has_value() && changed_.Wait(mutex_, grace)) {
    }
    if (!ended_.has_value()) context_.TryCancel();
    DropHold();
    if (!AwaitEnd()) return;
  }
  if (watcher_.joinable()) watcher_.join();
}

}  // namespace cohort::launcher
