#include "cohort/launcher/rpc/server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <latch>
#include <map>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/listener.h"
#include "cohort/launcher/base/open_files.h"
#include "cohort/launcher/control/launcher_messages.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/launcher/control/standby/replicated_rendezvous.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/launcher/rpc/agent_stream.h"
#include "cohort/launcher/rpc/connection_guard.h"
#include "cohort/launcher/rpc/grpc_settings.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/v1/rendezvous.grpc.pb.h"

namespace cohort::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kThreadsNeeded = 16;
// How long what was sent to a closed stream may take to be written.
constexpr std::chrono::milliseconds kCloseTimeout{1000};
constexpr std::chrono::milliseconds kLastWordsTimeout{1000};
constexpr size_t kManyAgents = 2000;  // where it is not known how many there are

// Connections that have not proven to be an agent's: all agents may come at once, and come again.
size_t MaxUnproven(size_t agents) { return PlacesForStrangers(64 + 2 * agents, 8 + agents); }

// gRPC neither says that it gets no threads nor goes on without: it waits.
absl::Status CheckThreads() {
  std::latch end(1);
  std::vector<std::thread> threads;
  absl::Status status;
  try {
    while (threads.size() < kThreadsNeeded) threads.emplace_back([&end] { end.wait(); });
  } catch (const std::system_error& error) {
    status = WithRemedy(Remedy::kProcessLimit, absl::ResourceExhaustedError("no threads: " + error.code().message() +
                                                                            "; raise ulimit -u or ulimit -v"));
  }
  end.count_down();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace

// gRPC's threads put events into a queue; one thread takes them out, runs the state machine and carries its actions
// out.
class RendezvousServer::Rep : public v1::Rendezvous::CallbackService, public AgentStream::Owner {
 public:
  Rep(std::unique_ptr<EventMachine> machine, ConnectionId first, size_t agents, Options options, OnFinished on_finished)
      : machine_(std::move(machine)),
        agents_(agents),
        options_(std::move(options)),
        on_finished_(std::move(on_finished)),
        next_id_(first) {}
  ~Rep() override;

  absl::Status Listen();
  void OnEvent(Event event) override;
  void OnStreamGone(ConnectionId id) override;

  std::string address;

 private:
  grpc::ServerBidiReactor<v1::FromAgent, v1::ToAgent>* Join(grpc::CallbackServerContext* context) override;

  absl::Status Serve(Listener listener);
  void Run();
  void Carry(std::vector<Action> actions);
  std::shared_ptr<AgentStream> StreamOf(ConnectionId id);
  void AbortSlowClosers(TimePoint now);

  const std::unique_ptr<EventMachine> machine_;  // of the thread alone, as are the next four
  const size_t agents_;
  const Options options_;
  OnFinished on_finished_;
  std::map<TimePoint, ConnectionId> closing_;

  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::deque<Event> events_ COHORT_GUARDED_BY(mutex_);
  bool stopping_ COHORT_GUARDED_BY(mutex_) = false;
  bool finished_ COHORT_GUARDED_BY(mutex_) = false;
  std::unordered_map<ConnectionId, std::shared_ptr<AgentStream>> streams_ COHORT_GUARDED_BY(mutex_);
  ConnectionId next_id_ COHORT_GUARDED_BY(mutex_);

  std::unique_ptr<ConnectionGuard> guard_;
  std::unique_ptr<grpc::Server> server_;
  std::thread thread_;
};

absl::Status RendezvousServer::Rep::Listen() {
  COHORT_RETURN_IF_ERROR(CheckThreads());
  absl::StatusOr<Listener> listener = ListenOn(options_.hosts, options_.port);
  for (int port = options_.port + 1; !listener.ok() && port <= options_.last_port; ++port) {
    listener = ListenOn(options_.hosts, port);
  }
  if (!listener.ok()) {
    return WithRemedy(Remedy::kRendezvousPort,
                      absl::Status(listener.status().code(),
                                   "the rendezvous could not listen on " + std::string(listener.status().message()) +
                                       (options_.last_port > 0 ? "; give --port-range other ports" : "")));
  }
  address = FormatAddresses(options_.hosts.empty() ? std::vector<std::string>{"::"} : options_.hosts, listener->port);
  COHORT_RETURN_IF_ERROR(Serve(*std::move(listener)));
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::Status RendezvousServer::Rep::Serve(Listener listener) {
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_root_certs = options_.identity.ca_certificate;
  tls.pem_key_cert_pairs.push_back({options_.identity.private_key, options_.identity.certificate});

  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // as DirectChannel; an agent's messages are short
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(-1);
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::SslServerCredentials(tls));
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return absl::UnavailableError(
        "the rendezvous could not start: the limit on open files (ulimit -n) is too low, or the certificate is "
        "malformed");
  }
  const ConnectionGuard::Options guarded{.max_unproven = MaxUnproven(agents_),
                                         .limit = std::chrono::milliseconds(kHandshakeTimeoutMs)};
  COHORT_ASSIGN_OR_RETURN(
      guard_, ConnectionGuard::Create(std::move(listener), guarded, [acceptor](runtime::FileDescriptor connection) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters handed;
        handed.fd = connection.Release();
        acceptor->HandleNewConnection(&handed);
      }));
  guard_->Start();  // from here on Join is called
  return absl::OkStatus();
}

RendezvousServer::Rep::~Rep() {
  bool finished = false;
  {
    const runtime::MutexLock lock(mutex_);
    stopping_ = true;
    finished = finished_;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  if (guard_ != nullptr) guard_->Stop();
  if (server_ == nullptr) return;
  // After the end of the job its report may still be on its way; Shutdown returns as soon as it has arrived.
  server_->Shutdown(std::chrono::system_clock::now() + (finished ? kLastWordsTimeout : std::chrono::milliseconds(0)));
  server_->Wait();
}

grpc::ServerBidiReactor<v1::FromAgent, v1::ToAgent>* RendezvousServer::Rep::Join(grpc::CallbackServerContext* context) {
  guard_->Proven(context->peer());  // it has shown a certificate
  std::shared_ptr<AgentStream> stream;
  {
    const runtime::MutexLock lock(mutex_);
    const ConnectionId id = next_id_++;
    stream = std::make_shared<AgentStream>(this, id, context);
    streams_[id] = stream;
  }
  stream->Start();
  return stream.get();
}

void RendezvousServer::Rep::OnEvent(Event event) {
  {
    const runtime::MutexLock lock(mutex_);
    if (stopping_) return;
    events_.push_back(std::move(event));
  }
  changed_.NotifyOne();
}

void RendezvousServer::Rep::OnStreamGone(ConnectionId id) {
  std::shared_ptr<AgentStream> last;  // destroyed after the lock is released
  const runtime::MutexLock lock(mutex_);
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  last = std::move(found->second);
  streams_.erase(found);
}

std::shared_ptr<AgentStream> RendezvousServer::Rep::StreamOf(ConnectionId id) {
  const runtime::MutexLock lock(mutex_);
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second;
}

void RendezvousServer::Rep::Run() {
  while (true) {
    std::deque<Event> events;
    {
      const runtime::MutexLock lock(mutex_);
      TimePoint wake = machine_->NextTick();
      if (!closing_.empty()) wake = std::min(wake, closing_.begin()->first);
      while (events_.empty() && !stopping_ && changed_.Wait(mutex_, runtime::Deadline(wake))) {
      }
      if (stopping_) return;
      events.swap(events_);
    }
    // Messages that had arrived come before the time that has passed: no sender of one of them is called silent.
    for (Event& event : events) {
      const Received* const received = std::get_if<Received>(&event);
      const ConnectionId from = received != nullptr ? received->from : 0;
      Carry(machine_->Handle(std::move(event), Clock::now()));
      if (from == 0) continue;
      if (const std::shared_ptr<AgentStream> stream = StreamOf(from)) stream->OnDealtWith();
    }
    const TimePoint now = Clock::now();
    if (now >= machine_->NextTick()) Carry(machine_->Tick(now));
    AbortSlowClosers(now);
  }
}

void RendezvousServer::Rep::Carry(std::vector<Action> actions) {
  for (Action& action : actions) {
    if (Send* const send = std::get_if<Send>(&action)) {
      if (const std::shared_ptr<AgentStream> stream = StreamOf(send->to)) stream->Send(std::move(send->message));
    } else if (const Close* const close = std::get_if<Close>(&action)) {
      if (const std::shared_ptr<AgentStream> stream = StreamOf(close->connection)) stream->Close();
      TimePoint deadline = Clock::now() + kCloseTimeout;
      while (!closing_.emplace(deadline, close->connection).second) deadline += std::chrono::nanoseconds(1);
    } else if (Finish* const finish = std::get_if<Finish>(&action)) {
      {
        const runtime::MutexLock lock(mutex_);
        finished_ = true;
      }
      if (on_finished_) on_finished_(std::move(finish->report));
    } else if (options_.on_news) {
      options_.on_news(NewsOf(std::move(action)));
    }
  }
}

void RendezvousServer::Rep::AbortSlowClosers(TimePoint now) {
  while (!closing_.empty() && closing_.begin()->first <= now) {
    if (const std::shared_ptr<AgentStream> stream = StreamOf(closing_.begin()->second)) stream->Abort();
    closing_.erase(closing_.begin());
  }
}

absl::StatusOr<std::unique_ptr<RendezvousServer>> RendezvousServer::Start(v1::JobPlan plan, Options options,
                                                                          OnFinished on_finished) {
  QuietGrpc();
  COHORT_RETURN_IF_ERROR(CheckPlan(plan));
  const auto agents = static_cast<size_t>(plan.placements_size() + plan.spares_size());
  auto rep = std::make_unique<Rep>(FirstHost(std::move(plan), Clock::now()), FirstConnection(1), agents,
                                   std::move(options), std::move(on_finished));
  COHORT_RETURN_IF_ERROR(rep->Listen());
  return std::unique_ptr<RendezvousServer>(new RendezvousServer(std::move(rep)));
}

absl::StatusOr<std::unique_ptr<RendezvousServer>> RendezvousServer::TakeOver(StandbyCopy copy,
                                                                             const v1::TakeOver& order, Options options,
                                                                             OnFinished on_finished) {
  QuietGrpc();
  auto rep =
      std::make_unique<Rep>(std::make_unique<ReplicatedRendezvous>(std::move(copy), order, Clock::now()),
                            FirstConnection(order.term()), kManyAgents, std::move(options), std::move(on_finished));
  COHORT_RETURN_IF_ERROR(rep->Listen());
  return std::unique_ptr<RendezvousServer>(new RendezvousServer(std::move(rep)));
}

RendezvousServer::RendezvousServer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
RendezvousServer::~RendezvousServer() = default;

const std::string& RendezvousServer::address() const { return rep_->address; }

void RendezvousServer::OnEvent(Event order) { rep_->OnEvent(std::move(order)); }

}  // namespace cohort::launcher
