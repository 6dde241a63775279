#include "cohort/launcher/agent/mpi/pmi1_service.h"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>
#include <variant>

#include "cohort/launcher/agent/mpi/process_mapping.h"
#include "cohort/launcher/control/parts/program_of.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

constexpr int kMostLastReads = 64;

Pmi1Node::Job JobOf(const v1::Assignment& assignment, const std::optional<Pmi1Service::Spawned>& spawned) {
  std::vector<size_t> ranks;
  for (const v1::Node& node : assignment.nodes()) ranks.push_back(node.rank_count());
  Pmi1Node::Job job;
  job.name = assignment.job().job_id() + "-" + std::to_string(assignment.epoch());
  job.world_size = static_cast<int>(assignment.world_size());
  job.universe = UniverseOf(assignment, CpusToShare());
  job.local_ranks = assignment.placement().ranks_size();
  job.first_rank = job.local_ranks > 0 ? static_cast<int>(assignment.placement().ranks(0).rank()) : 0;
  job.nodes = static_cast<int>(std::count_if(ranks.begin(), ranks.end(), [](size_t count) { return count > 0; }));
  job.mapping = ProcessMapping(ranks, kToldPmiValue - 1);
  if (spawned) job.values = spawned->values;
  for (const v1::RankPlacement& rank : assignment.placement().ranks()) {
    job.appnums.push_back(ProgramOf(assignment.job().programs(), rank.rank()));
  }
  return job;
}

}  // namespace

Pmi1Service::Pmi1Service(EventLoop* loop, const v1::Assignment& assignment, StoredValues* store, Callbacks callbacks,
                         std::chrono::nanoseconds patience, std::optional<Spawned> spawned)
    : loop_(loop),
      assignment_(assignment),
      callbacks_(std::move(callbacks)),
      places_(PlacesOf(assignment)),
      node_(JobOf(assignment, spawned)),
      exchange_(store),
      left_news_(store, "pmi1"),
      names_(loop, store, "pmi1"),
      spawned_(spawned.has_value()),
      ranks_(static_cast<size_t>(assignment.placement().ranks_size())),
      patience_(patience) {}

Pmi1Service::~Pmi1Service() {
  *lives_ = false;
  loop_->Cancel(barrier_timer_);
  for (const Rank& rank : ranks_) {
    if (rank.ours.valid()) loop_->Unwatch(rank.ours.get());
  }
}

absl::Status Pmi1Service::Start() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return WithRemedy(
          Remedy::kMpiDescriptors,
          absl::ResourceExhaustedError(std::string("no descriptors for MPI's sockets: ") + std::strerror(errno) +
                                       "; raise ulimit -n, or use --mpi none if no rank uses MPI"));
    }
    ranks_[i].ours = runtime::FileDescriptor(ends[0]);
    ranks_[i].theirs = runtime::FileDescriptor(ends[1]);
    loop_->Watch(ends[0], EPOLLIN, [this, i](uint32_t events) { OnReady(static_cast<int>(i), events); });
  }
  if (places_.nodes.size() > 1) {
    left_news_.Listen([this](const std::string& what) { Handle(node_.OnLeftElsewhere(what)); });
  }
  return absl::OkStatus();
}

std::vector<std::string> Pmi1Service::EnvironmentOf(int local_rank) const {
  const v1::RankPlacement& rank = assignment_.placement().ranks(local_rank);
  std::vector<std::string> environment = {
      "PMI_FD=" + std::to_string(InheritedBy(local_rank)), "PMI_RANK=" + std::to_string(rank.rank()),
      "PMI_SIZE=" + std::to_string(assignment_.world_size()), "MPI_LOCALRANKID=" + std::to_string(rank.local_rank()),
      "MPI_LOCALNRANKS=" + std::to_string(assignment_.placement().ranks_size())};
  if (spawned_) environment.emplace_back("PMI_SPAWNED=1");
  return environment;
}

void Pmi1Service::CloseInherited() {
  for (Rank& rank : ranks_) rank.theirs.Close();
}

void Pmi1Service::OnReady(int local_rank, uint32_t events) {
  if ((events & EPOLLOUT) != 0) SendUnsent(local_rank);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !ReadSome(local_rank)) Close(local_rank);
}

bool Pmi1Service::ReadSome(int local_rank) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (!rank.ours.valid()) return true;
  char buffer[16u << 10];
  const ssize_t n = ::recv(rank.ours.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  rank.unread.append(buffer, static_cast<size_t>(n));
  size_t begin = 0;
  for (size_t end; (end = rank.unread.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Handle(node_.OnLine(local_rank, std::string_view(rank.unread).substr(begin, end - begin)));
    if (!rank.ours.valid()) return true;
  }
  rank.unread.erase(0, begin);
  if (rank.unread.size() <= kMaxPmiLine) return true;
  callbacks_.on_notice("rank " + std::to_string(assignment_.placement().ranks(local_rank).rank()) +
                       " writes to the descriptor PMI_FD what is no PMI-1: it is served no more");
  return false;
}

// It may have said something last, MPI_Abort for one; but what it left behind may go on for ever.
void Pmi1Service::OnEnded(int local_rank) {
  const Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  int unread = 0;
  for (int i = 0; i < kMostLastReads && rank.ours.valid(); ++i) {
    if (::ioctl(rank.ours.get(), FIONREAD, &unread) != 0 || unread == 0 || !ReadSome(local_rank)) break;
  }
  Close(local_rank);
}

void Pmi1Service::Close(int local_rank) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (!rank.ours.valid()) return;
  loop_->Unwatch(rank.ours.get());
  rank.ours.Close();
  Handle(node_.OnClosed(local_rank));
}

void Pmi1Service::Send(int local_rank, const std::string& line) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (!rank.ours.valid()) return;
  rank.unsent += line;
  SendUnsent(local_rank);
}

void Pmi1Service::SendUnsent(int local_rank) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (!rank.ours.valid()) return;
  while (!rank.unsent.empty()) {
    const ssize_t n = ::send(rank.ours.get(), rank.unsent.data(), rank.unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      rank.unsent.erase(0, static_cast<size_t>(n));
    } else if (errno != EINTR) {
      break;  // the reading side learns of an end
    }
  }
  // One that asks and does not read the answers is read no more until it does.
  uint32_t events = 0;
  if (!rank.unsent.empty()) events |= EPOLLOUT;
  if (rank.unsent.size() <= kMostUnsent && rank.unanswered == 0) events |= EPOLLIN;
  loop_->SetEvents(rank.ours.get(), events);
}

void Pmi1Service::Handle(const Pmi1Node::Events& events) {
  for (const Pmi1Node::Event& event : events) {
    if (const auto* answer = std::get_if<Pmi1Node::Answer>(&event)) {
      Send(answer->local_rank, answer->line);
    } else if (const auto* publish = std::get_if<Pmi1Node::Publish>(&event)) {
      Exchange(*publish);
    } else if (const auto* aborted = std::get_if<Pmi1Node::Aborted>(&event)) {
      callbacks_.on_abort(aborted->local_rank, aborted->code);
    } else if (const auto* abandoned = std::get_if<Pmi1Node::Abandoned>(&event)) {
      callbacks_.on_stuck(abandoned->local_rank, "it can't go on in MPI without " + abandoned->by);
    } else if (const auto* nested = std::get_if<Pmi1Node::Nested>(&event)) {
      callbacks_.on_notice(
          "rank " + std::to_string(assignment_.placement().ranks(nested->local_rank).rank()) +
          " is in MPI and has started a second MPI program, which is refused: start that one alone, by "
          "env -u PMI_FD");
    } else if (const auto* left = std::get_if<Pmi1Node::Left>(&event)) {
      left_news_.Tell(RankThatLeft(left->by, places_.nodes[places_.own].name));
    } else if (const auto* call = std::get_if<Pmi1Node::NameCall>(&event)) {
      Do(*call);
    } else if (const auto* spawn = std::get_if<Pmi1Node::Spawn>(&event)) {
      Do(*spawn);
    }
  }
  WatchBarrier();
}

std::function<void(const std::string&)> Pmi1Service::AnswerLater(int local_rank) {
  ++ranks_[static_cast<size_t>(local_rank)].unanswered;
  SendUnsent(local_rank);
  return [this, lives = lives_, local_rank](const std::string& line) {
    if (!*lives) return;
    --ranks_[static_cast<size_t>(local_rank)].unanswered;
    Send(local_rank, line);
  };
}

void Pmi1Service::Do(const Pmi1Node::NameCall& call) {
  using Kind = Pmi1Node::NameCall::Kind;
  const auto answer = AnswerLater(call.local_rank);
  const auto done = [answer, kind = call.kind](ServiceNames::Outcome outcome) {
    answer(Pmi1Node::NameAnswer(kind, ServiceNames::WhyNot(outcome)));
  };
  switch (call.kind) {
    case Kind::kPublish:
      return names_.Publish(call.name, call.port, done);
    case Kind::kUnpublish:
      return names_.Unpublish(call.name, done);
    case Kind::kLookUp:
      return names_.Look(call.name, std::chrono::milliseconds(0), [answer](const std::optional<std::string>& port) {
        const auto why = port ? ServiceNames::Outcome::kDone : ServiceNames::Outcome::kUnknown;
        answer(Pmi1Node::NameAnswer(Kind::kLookUp, ServiceNames::WhyNot(why), port.value_or("")));
      });
  }
}

void Pmi1Service::Do(const Pmi1Node::Spawn& spawn) {
  int64_t count = 0;  // not checked yet
  for (const SpawnedProgram& program : spawn.request.programs) count += program.count;
  callbacks_.on_spawn(spawn.local_rank, spawn.request,
                      [answer = AnswerLater(spawn.local_rank), count](const absl::StatusOr<std::string>& world) {
                        answer(Pmi1Node::SpawnAnswer(world.status(), world.ok() ? static_cast<int>(count) : 0));
                      });
}

void Pmi1Service::Exchange(const Pmi1Node::Publish& publish) {
  const ValueExchange::Round round = {"pmi1", publish.round};
  exchange_.Publish(round, places_.own, publish.values);
  std::vector<size_t> all(places_.nodes.size());
  std::iota(all.begin(), all.end(), size_t{0});
  exchange_.Fetch(round, all, places_.own,
                  [this](const std::vector<std::string>& values) { Handle(node_.OnAllPublished(values)); });
}

void Pmi1Service::WatchBarrier() {
  if (node_.MissingInBarrier().empty() && !node_.waits_for_nodes()) {
    loop_->Cancel(std::exchange(barrier_timer_, 0));
  } else if (barrier_timer_ == 0) {
    barrier_timer_ = loop_->After(patience_, [this] { TellOfBarrier(); });
  }
}

void Pmi1Service::TellOfBarrier() const {
  const std::vector<int> ranks = node_.MissingInBarrier();
  const std::string whom = ranks.empty() ? NodesWaitedFor(places_, exchange_.missing())
                                         : NamesOfRanks(ranks) + " of " + places_.nodes[places_.own].name;
  if (whom.empty()) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience_).count();
  callbacks_.on_notice("MPI's barrier (MPI_Init is one) has waited " + std::to_string(seconds) + " s for " + whom);
}

}  // namespace cohort::launcher
