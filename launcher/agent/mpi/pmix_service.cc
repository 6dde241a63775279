#include "cohort/launcher/agent/mpi/pmix_service.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <variant>

#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

// The name that all nodes give to a fence of these ranks.
std::string NameOf(const std::vector<int>& ranks) {
  if (ranks.empty()) return "all";
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const int rank : ranks) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<uint32_t>(rank) >> shift) & 0xff)) * 0x100000001b3;
    }
  }
  return std::to_string(hash);
}

// PMIx tells names apart; those of the plan may repeat, or hold what separates them in a list.
PmixEndpoint::Job JobOf(const NodePlaces& places, const std::string& name, int world_size,
                        const RankPrograms& programs) {
  PmixEndpoint::Job job;
  job.name = name;
  job.world_size = world_size;
  job.own = places.own;
  for (int rank = 0; programs.size() > 1 && rank < world_size; ++rank) {
    job.programs.push_back(ProgramOf(programs, static_cast<uint32_t>(rank)));
  }
  std::set<std::string> names;
  for (const NodePlace& node : places.nodes) {
    std::string host = node.name;
    std::replace_if(host.begin(), host.end(), [](char c) { return c == ',' || c == ';' || c == ' '; }, '_');
    if (host.empty() || !names.insert(host).second) host += "-" + std::to_string(job.nodes.size());
    job.nodes.push_back({.name = host, .first_rank = node.first_rank, .ranks = node.ranks});
  }
  return job;
}

}  // namespace

PmixService::PmixService(EventLoop* loop, const v1::Assignment& assignment, StoredValues* store, Callbacks callbacks,
                         std::chrono::nanoseconds patience, std::optional<Spawned> spawned)
    : loop_(loop),
      store_(store),
      callbacks_(std::move(callbacks)),
      places_(PlacesOf(assignment)),
      world_size_(static_cast<int>(assignment.world_size())),
      job_name_(assignment.job().job_id() + "-" + std::to_string(assignment.epoch())),
      exchange_(store),
      left_news_(store, "pmix"),
      names_(loop, store, "pmix"),
      spawned_(std::move(spawned)),
      programs_(assignment.job().programs()),
      nodes_share_host_(assignment.job().nodes_share_host()),
      assignment_(assignment),
      ranks_(static_cast<size_t>(assignment.placement().ranks_size())),
      patience_(patience) {}

PmixService::~PmixService() {
  *lives_ = false;
  loop_->Cancel(wait_timer_);
}

absl::Status PmixService::Start(int cpus, const Starter& start) {
  cpus_ = cpus;
  if (ranks_.empty()) return absl::OkStatus();
  PmixEndpoint::Job job = JobOf(places_, job_name_, world_size_, programs_);
  job.universe = UniverseOf(assignment_, cpus);
  if (spawned_) {
    job.parent = spawned_->parent;
    job.parent_rank = spawned_->parent_rank;
  }
  auto server = start(job, [this, lives = lives_](PmixEndpoint::Event event) {
    loop_->Post([this, lives, event = std::move(event)] {
      if (*lives) std::visit([this](const auto& it) { On(it); }, event);
    });
  });
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  if (places_.nodes.size() > 1) {
    store_->Get("ask/" + std::to_string(places_.own), [this](const std::string&) { ShareValues(); });
    left_news_.Listen([this](const std::string& what) {
      left_elsewhere_ = what;
      LookForLeft();
    });
  }
  return absl::OkStatus();
}

std::vector<std::string> PmixService::EnvironmentOf(int local_rank) {
  if (server_ == nullptr) return {};
  std::vector<std::string> environment = server_->EnvironmentOf(local_rank);
  // Open MPI 4 names shared memory by the host and the number on the node: nodes that share a host would share it too.
  if (nodes_share_host_ && places_.nodes.size() > 1) environment.push_back("OMPI_MCA_btl=^vader");
  // A waiting rank would keep others from the CPU that they share. Its own mpirun tells it so too.
  const int ranks = nodes_share_host_ ? world_size_ : static_cast<int>(ranks_.size());
  if (ranks > cpus_ || spawned_) environment.push_back("OMPI_MCA_mpi_yield_when_idle=1");
  return environment;
}

void PmixService::On(const PmixEndpoint::Connected& event) {
  Rank& rank = ranks_[static_cast<size_t>(event.local_rank)];
  if (rank.state == State::kEnded) return;
  rank.state = State::kConnected;
  rank.used = true;
  WatchWaits();
  LookForLeft();
}

void PmixService::On(const PmixEndpoint::Finalized& event) {
  Rank& rank = ranks_[static_cast<size_t>(event.local_rank)];
  rank.left = false;  // its end was seen first
  if (rank.state != State::kEnded) rank.state = State::kFinalized;
}

void PmixService::On(const PmixEndpoint::Aborted& event) {
  if (event.text != "N/A") {
    TellLines(event.local_rank,
              "rank " + std::to_string(NumberOf(event.local_rank)) + " has called MPI_Abort: ", event.text);
  }
  On(PmixEndpoint::Finalized{event.local_rank});
  callbacks_.on_abort(event.local_rank, event.code);
}

void PmixService::On(const PmixEndpoint::Said& event) {
  TellLines(event.local_rank, "MPI of rank " + std::to_string(NumberOf(event.local_rank)) + ": ", event.text);
  server_->Answer(event.number, "");
}

void PmixService::TellLines(int local_rank, const std::string& before, const std::string& text) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  const size_t room = kMostSaidBytes - std::min(rank.said_bytes, kMostSaidBytes);
  const bool was_full = rank.said_bytes > kMostSaidBytes;
  rank.said_bytes += text.size();
  for (size_t begin = 0; begin < std::min(text.size(), room);) {
    const size_t end = std::min({text.find('\n', begin), text.size(), room});
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of("- \t\r") != std::string::npos) callbacks_.on_notice(before + line);
  }
  if (text.size() > room && !was_full) {
    callbacks_.on_notice("MPI of rank " + std::to_string(NumberOf(local_rank)) + " says more, which is left out");
  }
}

void PmixService::On(const PmixEndpoint::Fence& event) {
  std::vector<size_t> members;
  if (event.ranks.empty()) {
    members.resize(places_.nodes.size());
    std::iota(members.begin(), members.end(), size_t{0});
  } else {
    members = places_.Of(event.ranks);
  }
  if (members == std::vector<size_t>{places_.own}) return server_->Answer(event.number, event.values);
  const std::string ranks = NameOf(event.ranks);
  const ValueExchange::Round round = {"fence/" + ranks, ++rounds_[ranks]};
  exchange_.Publish(round, places_.own, Sealed(event.values));
  exchange_.Fetch(round, members, places_.own, [this, event, members](const std::vector<std::string>& others) {
    FinishFence(event, members, others);
  });
  WatchWaits();
}

std::optional<std::string> PmixService::Unsealed(size_t node, const std::string& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string version = text.substr(0, end);
  if (version == server_->version() && end < text.size()) return text.substr(end + 1);
  OnLeft(WithRemedy(Remedy::kPmixVersions, "the ranks of " + places_.nodes[node].name + ", whose OpenPMIx is " +
                                               version + " and not " + server_->version() + " as on " + own_name() +
                                               "; install one version on all nodes"));
  return std::nullopt;
}

void PmixService::FinishFence(const PmixEndpoint::Fence& fence, const std::vector<size_t>& members,
                              const std::vector<std::string>& others) {
  WatchWaits();
  std::string all = fence.values;
  size_t i = 0;
  for (const size_t member : members) {
    if (member == places_.own) continue;
    const std::optional<std::string> values = Unsealed(member, others[i++]);
    if (!values) return;
    all += *values;
  }
  server_->Answer(fence.number, all);
}

void PmixService::On(const PmixEndpoint::Wanted& event) {
  const std::vector<size_t> node = places_.Of({event.rank});
  if (node.empty()) return server_->Refuse(event.number, PmixEndpoint::Refusal::kNotFound);  // no rank of the job
  if (asked_nodes_.insert(node[0]).second) store_->Put("ask/" + std::to_string(node[0]), "");
  store_->Get("rank/" + std::to_string(event.rank),
              [this, number = event.number, node = node[0]](const std::string& text) {
                if (text.empty()) return server_->Refuse(number, PmixEndpoint::Refusal::kNotFound);
                if (const std::optional<std::string> values = Unsealed(node, text)) server_->Answer(number, *values);
              });
}

void PmixService::ShareValues() {
  for (size_t i = 0; i < ranks_.size(); ++i) server_->AskForValues(static_cast<int>(i));
}

void PmixService::On(const PmixEndpoint::Values& event) {
  store_->Put("rank/" + std::to_string(NumberOf(event.local_rank)), event.found ? Sealed(event.values) : "");
}

ServiceNames::Done PmixService::AnswerOf(uint64_t number) {
  using Outcome = ServiceNames::Outcome;
  return [this, number](Outcome outcome) {
    if (outcome == Outcome::kDone) return server_->Answer(number, "");
    const bool no_room = outcome == Outcome::kNoRoom || outcome == Outcome::kTooLong;
    const auto why = outcome == Outcome::kTaken ? PmixEndpoint::Refusal::kTaken : PmixEndpoint::Refusal::kNotFound;
    server_->Refuse(number, no_room ? PmixEndpoint::Refusal::kNoRoom : why);
  };
}

// "1" before a value that is taken away by the first that looks it up.
void PmixService::On(const PmixEndpoint::Publish& event) {
  names_.Publish(event.name, (event.once ? "1" : "0") + event.value, AnswerOf(event.number));
}

void PmixService::On(const PmixEndpoint::Unpublish& event) { names_.Unpublish(event.name, AnswerOf(event.number)); }

void PmixService::On(const PmixEndpoint::LookUp& event) {
  names_.Look(event.name, event.wait, [this, event](const std::optional<std::string>& value) {
    if (!value || value->empty()) return server_->Refuse(event.number, PmixEndpoint::Refusal::kNotFound);
    if (value->front() != '1') return server_->AnswerLookUp(event.number, event.name, value->substr(1));
    names_.Unpublish(event.name, [this, event, its = value->substr(1)](ServiceNames::Outcome outcome) {
      if (outcome == ServiceNames::Outcome::kDone) return server_->AnswerLookUp(event.number, event.name, its);
      On(event);  // another was faster: it is as if the name had not been there yet
    });
  });
}

void PmixService::On(const PmixEndpoint::Spawn& event) {
  callbacks_.on_spawn(event.local_rank, event.request,
                      [this, lives = lives_, number = event.number](const absl::StatusOr<std::string>& world) {
                        if (!*lives) return;
                        if (world.ok()) return server_->AnswerSpawn(number, *world);
                        server_->Refuse(number, PmixEndpoint::Refusal::kFailed);
                      });
}

// The servers of other nodes don't know the namespace of processes that were spawned here.
void PmixService::On(const PmixEndpoint::Joined& event) {
  if (event.all_here) return server_->Answer(event.number, event.values);
  server_->Refuse(event.number, PmixEndpoint::Refusal::kNotSupported);
  if (std::exchange(refused_to_join_, true)) return;
  callbacks_.on_notice(
      "ranks of several nodes and processes that one of them has spawned connect to each other: dlaunch does not serve "
      "that for Open MPI; call MPI_Comm_spawn over MPI_COMM_SELF, or run on one node");
}

MpiUse PmixService::UseOf(int local_rank) const {
  const Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (!rank.used) return MpiUse::kNever;
  if (rank.state == State::kConnected) return MpiUse::kInside;
  return rank.left ? MpiUse::kLeft : MpiUse::kFinalized;
}

// The event of its MPI_Finalize may be on its way.
void PmixService::OnEnded(int local_rank) {
  loop_->Post([this, lives = lives_, local_rank] {
    if (!*lives) return;
    Rank& rank = ranks_[static_cast<size_t>(local_rank)];
    rank.left = rank.state != State::kFinalized;
    rank.state = State::kEnded;
    WatchWaits();
    LookForLeft();
  });
}

void PmixService::LookForLeft() {
  const auto left = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.left; });
  if (left == ranks_.end()) return left_elsewhere_.empty() ? void() : OnLeft(left_elsewhere_);
  const int by = NumberOf(static_cast<int>(left - ranks_.begin()));
  OnLeft(RankThatLeft(by, ""));
  if (places_.nodes.size() > 1) left_news_.Tell(RankThatLeft(by, own_name()));
}

void PmixService::OnLeft(const std::string& what) {
  const auto waits =
      std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& its) { return its.state == State::kConnected; });
  if (waits == ranks_.end()) return;
  callbacks_.on_stuck(static_cast<int>(waits - ranks_.begin()), "it can't go on in MPI without " + what);
}

std::vector<int> PmixService::MissingInInit() const {
  std::vector<int> missing;
  bool any_came = false;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].state == State::kNew) missing.push_back(NumberOf(static_cast<int>(i)));
    any_came = any_came || ranks_[i].state == State::kConnected;
  }
  return any_came ? missing : std::vector<int>();
}

// Each wait is told once.
void PmixService::WatchWaits() {
  if (MissingInInit().empty() && exchange_.missing().empty()) {
    loop_->Cancel(std::exchange(wait_timer_, 0));
  } else if (wait_timer_ == 0) {
    wait_timer_ = loop_->After(patience_, [this] { TellOfMissing(); });
  }
}

void PmixService::TellOfMissing() const {
  const std::vector<int> ranks = MissingInInit();
  const std::string nodes = NodesWaitedFor(places_, exchange_.missing());
  const std::string seconds = std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience_).count());
  if (!ranks.empty()) {
    callbacks_.on_notice("MPI_Init has waited " + seconds + " s for " + NamesOfRanks(ranks) + " of " + own_name());
  } else if (!nodes.empty()) {
    callbacks_.on_notice("MPI's fence (MPI_Init has one) has waited " + seconds + " s for " + nodes);
  }
}

}  // namespace cohort::launcher
