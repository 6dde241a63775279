#include "cohort/launcher/rpc/agent_stream.h"

#include <algorithm>
#include <utility>

#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/rpc/connection_guard.h"
#include "cohort/launcher/rpc/grpc_settings.h"

namespace cohort::launcher {
namespace {

std::vector<std::string> CertifiedNames(const grpc::ServerContextBase& context) {
  std::vector<std::string> names;
  for (const grpc::string_ref& name : context.auth_context()->FindPropertyValues("x509_subject_alternative_name")) {
    names.emplace_back(name.data(), name.size());
  }
  return names;
}

}  // namespace

AgentStream::AgentStream(Owner* owner, ConnectionId id, grpc::CallbackServerContext* context)
    : owner_(owner), id_(id), context_(context), certified_names_(CertifiedNames(*context)) {}

grpc::Status AgentStream::Check(v1::NodeOffer* offer) const {
  const std::string claimed = AgentCertificateName(offer->node());
  if (std::find(certified_names_.begin(), certified_names_.end(), claimed) == certified_names_.end()) {
    const std::string own = certified_names_.empty() ? "nobody" : certified_names_.front();
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                        "an agent with the certificate of " + own + " claims to be " + claimed);
  }
  if (offer->address().empty()) offer->set_address(PeerHost(context_->peer()));
  return grpc::Status::OK;
}

void AgentStream::OnDealtWith() {
  const runtime::MutexLock lock(mutex_);
  if (--passed_on_ == 0 && !finished_) StartRead(&incoming_);
}

void AgentStream::Send(std::shared_ptr<const v1::ToAgent> message) {
  bool too_slow = false;
  {
    const runtime::MutexLock lock(mutex_);
    if (finished_ || closing_) return;
    queued_bytes_ += message->ByteSizeLong();
    too_slow = queued_bytes_ > kMaxQueuedBytes;
    outgoing_.push_back(std::move(message));
    if (!writing_) WriteNext();
  }
  if (too_slow) Abort();
}

void AgentStream::Close() {
  {
    const runtime::MutexLock lock(mutex_);
    if (finished_) return;
    closing_ = true;
    if (writing_) return;  // OnWriteDone goes on
  }
  End(grpc::Status::OK, "the rendezvous ended the connection");
}

void AgentStream::Abort() {
  const runtime::MutexLock lock(mutex_);
  if (!gone_) context_->TryCancel();
}

void AgentStream::WriteNext() {
  writing_ = true;
  StartWrite(outgoing_.front().get());
}

void AgentStream::OnReadDone(bool ok) {
  if (!ok) {
    End(grpc::Status::OK, "its connection was closed");
    return;
  }
  if (!joined_) {
    const grpc::Status status = incoming_.has_join() ? Check(incoming_.mutable_join())
                                                     : grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                                                                    "the first message must be an offer to join");
    if (!status.ok()) {
      End(status, "");
      return;
    }
    const runtime::MutexLock lock(mutex_);
    if (finished_) return;
    joined_ = true;
    StartSendInitialMetadata();       // tells the agent that it is in
  } else if (incoming_.has_join()) {  // its certificate was compared with the first offer alone
    End(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "an agent offers itself once"), "it joined twice");
    return;
  }
  PassOn();
}

bool AgentStream::IsProper(const v1::AgentBatch& batch) {
  return !batch.messages().empty() && std::none_of(batch.messages().begin(), batch.messages().end(),
                                                   [](const auto& one) { return one.has_join() || one.has_batch(); });
}

void AgentStream::PassOn() {
  // The owner's thread may start the next read before OnEvent returns: from then on `incoming_` is gRPC's again.
  v1::FromAgent message = std::move(incoming_);
  incoming_.Clear();
  if (message.has_batch() && !IsProper(message.batch())) {
    return End(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "a batch is empty, or holds an offer or a batch"),
               "it sent a malformed batch");
  }
  {
    const runtime::MutexLock lock(mutex_);
    passed_on_ = message.has_batch() ? message.batch().messages_size() : 1;
  }
  if (!message.has_batch()) return owner_->OnEvent(Received{id_, std::move(message)});
  for (v1::FromAgent& one : *message.mutable_batch()->mutable_messages()) {
    owner_->OnEvent(Received{id_, std::move(one)});
  }
}

void AgentStream::OnWriteDone(bool ok) {
  bool end = false;
  {
    const runtime::MutexLock lock(mutex_);
    queued_bytes_ -= outgoing_.front()->ByteSizeLong();
    outgoing_.pop_front();
    writing_ = false;
    if (finished_) return;
    if (ok && !outgoing_.empty()) {
      WriteNext();
    } else {
      end = !ok || closing_;
    }
  }
  if (end) End(grpc::Status::OK, "its connection was closed");
}

void AgentStream::OnCancel() {
  End(grpc::Status::CANCELLED, "its connection broke, or it had no answer for 3.4 s (its machine may be too busy)");
}

void AgentStream::End(const grpc::Status& status, const std::string& reason) {
  bool joined = false;
  {
    const runtime::MutexLock lock(mutex_);
    if (finished_) return;
    finished_ = true;
    joined = joined_;
  }
  if (joined) owner_->OnEvent(Disconnected{id_, reason});
  Finish(status);
}

void AgentStream::OnDone() {
  {
    const runtime::MutexLock lock(mutex_);
    gone_ = true;
  }
  owner_->OnStreamGone(id_);
}

}  // namespace cohort::launcher
