#include "cohort/launcher/agent/mpi/pmi1_node.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/agent/mpi/left_news.h"

namespace cohort::launcher {
namespace {

constexpr char kInitRefused[] = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n";

std::string Refusal(std::string_view command, std::string_view why) {
  return "cmd=" + std::string(command) + " rc=-1 msg=" + std::string(why) + "\n";
}

// As a word of a line: without blanks.
std::string Word(std::string_view text) {
  std::string word(text.substr(0, kMaxPmiKey));
  std::replace_if(word.begin(), word.end(), [](unsigned char c) { return c <= ' '; }, '_');
  return word;
}

std::string_view VerbOf(Pmi1Node::NameCall::Kind kind) {
  switch (kind) {
    case Pmi1Node::NameCall::Kind::kPublish:
      return "publish";
    case Pmi1Node::NameCall::Kind::kLookUp:
      return "lookup";
    case Pmi1Node::NameCall::Kind::kUnpublish:
      break;
  }
  return "unpublish";
}

}  // namespace

Pmi1Node::Pmi1Node(Job job) : job_(std::move(job)), ranks_(static_cast<size_t>(job_.local_ranks)) {
  for (size_t i = 0; i < std::min(ranks_.size(), job_.appnums.size()); ++i) ranks_[i].appnum = job_.appnums[i];
  // Without it an MPI library takes each rank for a node.
  if (!job_.mapping.empty() && job_.mapping.size() < kToldPmiValue) Store("PMI_process_mapping", job_.mapping);
  for (const auto& [key, value] : job_.values) {
    if (!key.empty() && key.size() <= kMaxPmiKey && value.size() <= kMaxPmiValue) Store(key, value);
  }
}

Pmi1Node::Events Pmi1Node::OnLine(int local_rank, std::string_view line) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (IsClosed(rank.state)) return {};
  if (rank.spawn.in_block()) return OnSpawnLine(local_rank, line);
  const Pmi1Message message = Pmi1Message::Parse(line);
  if (message.command() == "spawn" && line.starts_with("mcmd=")) {
    rank.spawn.BeginBlock();
    return {};
  }
  if (rank.state == State::kInitialized) {
    if (std::optional<Event> call = AsNameCall(local_rank, message)) return {*std::move(call)};
  }
  if (message.command() == "barrier_in" && rank.state == State::kInitialized) return EnterBarrier(local_rank);
  if (message.command() == "abort") {
    rank.state = State::kFinalized;
    return {Aborted{local_rank, message.GetNumber("exitcode", 1)}};
  }
  if (message.command() == "init" && rank.state == State::kInitialized) {
    Events events;
    if (!std::exchange(rank.nested_is_told, true)) events.emplace_back(Nested{local_rank});
    events.emplace_back(Answer{local_rank, kInitRefused});
    return events;
  }
  Events events = {Answer{local_rank, Reply(rank, message)}};
  if (message.command() == "init") LookForLeft(&events);
  return events;
}

Pmi1Node::Events Pmi1Node::OnSpawnLine(int local_rank, std::string_view line) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  std::optional<absl::StatusOr<SpawnRequest>> request = rank.spawn.OnLine(line);
  if (!request) return {};
  if (rank.state != State::kInitialized) *request = absl::FailedPreconditionError("init_comes_first");
  if (!request->ok()) return {Answer{local_rank, SpawnAnswer(request->status(), 0)}};
  return {Spawn{local_rank, **std::move(request)}};
}

// Without codes a client takes all for 0.
std::string Pmi1Node::SpawnAnswer(const absl::Status& status, int count) {
  if (!status.ok()) return Refusal("spawn_result", Word(std::string(status.message())));
  const std::string line = "cmd=spawn_result rc=0";
  std::string codes = " errcodes=0";
  for (int i = 1; i < count; ++i) codes += ",0";
  return (line.size() + codes.size() + 1 < kMaxClientLine ? line + codes : line) + "\n";
}

std::optional<Pmi1Node::Event> Pmi1Node::AsNameCall(int local_rank, const Pmi1Message& message) {
  using Kind = NameCall::Kind;
  for (const Kind kind : {Kind::kPublish, Kind::kLookUp, Kind::kUnpublish}) {
    if (message.command() != std::string(VerbOf(kind)) + "_name") continue;
    const std::string name(message.Get("service")), port(message.Get("port"));
    if (name.empty() || name.size() > kMaxPmiName || port.size() > kMaxPmiValue) {
      return Answer{local_rank, NameAnswer(kind, "the_name_is_empty_or_too_long")};
    }
    return NameCall{local_rank, kind, name, port};
  }
  return std::nullopt;
}

// Libraries look at one of `info` and `rc`.
std::string Pmi1Node::NameAnswer(NameCall::Kind kind, std::string_view why, std::string_view port) {
  const std::string command = "cmd=" + std::string(VerbOf(kind)) + "_result ";
  if (!why.empty()) return command + "info=" + Word(why) + " rc=-1 msg=" + Word(why) + "\n";
  return command + (port.empty() ? "" : "port=" + std::string(port) + " ") + "info=ok rc=0 msg=success\n";
}

std::string Pmi1Node::Reply(Rank& rank, const Pmi1Message& message) {
  const std::string& command = message.command();
  if (command == "init") {
    if (message.GetNumber("pmi_version", 0) != 1) {
      if (rank.state == State::kNew) rank.state = State::kRefused;
      return kInitRefused;
    }
    rank.state = State::kInitialized;
    return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
  }
  if (command == "get_maxes") {
    return "cmd=maxes kvsname_max=" + std::to_string(kToldPmiName) + " keylen_max=" + std::to_string(kToldPmiKey) +
           " vallen_max=" + std::to_string(kToldPmiValue) + "\n";
  }
  if (command == "get_appnum") return "cmd=appnum appnum=" + std::to_string(rank.appnum) + "\n";
  if (command == "get_my_kvsname") return "cmd=my_kvsname kvsname=" + job_.name + "\n";
  if (command == "get_universe_size") return "cmd=universe_size size=" + std::to_string(job_.universe) + "\n";
  if (command == "put") return Put(message);
  if (command == "get") return Get(message);
  if (command == "finalize") {
    rank.state = State::kFinalized;
    return "cmd=finalize_ack\n";
  }
  if (command == "barrier_in") return Refusal("barrier_out", "init_comes_first");
  return Refusal((command.empty() ? "unknown" : command.substr(0, kMaxPmiKey)) + "_result", "no_such_command");
}

std::string Pmi1Node::Put(const Pmi1Message& message) {
  const std::string key(message.Get("key")), value(message.Get("value"));
  if (message.Get("kvsname") != job_.name) return Refusal("put_result", "no_such_kvsname");
  if (key.empty() || key.size() > kMaxPmiKey) return Refusal("put_result", "the_key_is_empty_or_too_long");
  if (value.size() > kMaxPmiValue) return Refusal("put_result", "the_value_is_too_long");
  if (!Store(key, value)) return Refusal("put_result", "the_values_of_all_ranks_are_more_than_64_MiB");
  if (job_.nodes > 1) unpublished_.insert(key);
  return "cmd=put_result rc=0 msg=success\n";
}

std::string Pmi1Node::Get(const Pmi1Message& message) const {
  const std::string key(message.Get("key"));
  const auto found = values_.find(key);
  if (message.Get("kvsname") != job_.name || found == values_.end()) {
    return "cmd=get_result rc=-1 msg=key_" + key.substr(0, kMaxPmiKey) + "_not_found value=unknown\n";
  }
  return "cmd=get_result rc=0 msg=success value=" + found->second + "\n";
}

bool Pmi1Node::Store(std::string key, std::string value) {
  const auto former = values_.find(key);
  const size_t freed = former == values_.end() ? 0 : key.size() + former->second.size() + kEntryBytes;
  const size_t bytes = key.size() + value.size() + kEntryBytes;
  if (bytes_ - freed + bytes > kMaxBytes) return false;
  bytes_ += bytes - freed;
  values_.insert_or_assign(std::move(key), std::move(value));
  return true;
}

bool Pmi1Node::Merge(std::string_view values) {
  while (!values.empty()) {
    const std::string_view line = values.substr(0, values.find('\n'));
    values.remove_prefix(std::min(line.size() + 1, values.size()));
    const size_t blank = line.find(' ');
    if (blank == std::string_view::npos) continue;
    if (!Store(std::string(line.substr(0, blank)), std::string(line.substr(blank + 1)))) return false;
  }
  return true;
}

std::string Pmi1Node::TakeUnpublished() {
  std::string text;
  for (const std::string& key : std::exchange(unpublished_, {})) text += key + " " + values_[key] + "\n";
  return text;
}

Pmi1Node::Events Pmi1Node::EnterBarrier(int local_rank) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (std::exchange(rank.in_barrier, true)) return {};
  if (++in_barrier_ < job_.local_ranks) {
    Events events;
    LookForLeft(&events);
    return events;
  }
  ++round_;
  if (job_.nodes == 1) return LeaveBarrier();
  publishing_ = true;
  return {Publish{round_, TakeUnpublished()}};
}

Pmi1Node::Events Pmi1Node::OnAllPublished(const std::vector<std::string>& values) {
  if (!std::exchange(publishing_, false)) return {};
  for (const std::string& node : values) {
    if (Merge(node)) continue;
    const int waits = RankInMpi();
    if (waits < 0) return {};
    return {Abandoned{waits, "values of other nodes: those of all ranks are more than 64 MiB"}};
  }
  return LeaveBarrier();
}

Pmi1Node::Events Pmi1Node::LeaveBarrier() {
  Events events;
  in_barrier_ = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (std::exchange(ranks_[i].in_barrier, false)) {
      events.emplace_back(Answer{static_cast<int>(i), "cmd=barrier_out rc=0\n"});
    }
  }
  return events;
}

Pmi1Node::State Pmi1Node::Closed(State before) {
  if (before == State::kNew) return State::kUnused;
  return before == State::kFinalized ? State::kEnded : State::kLeft;
}

Pmi1Node::Events Pmi1Node::OnClosed(int local_rank) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (IsClosed(rank.state)) return {};
  rank.state = Closed(rank.state);
  Events events;
  LookForLeft(&events);
  if (rank.state == State::kEnded) return events;
  if (job_.nodes > 1 && !std::exchange(end_is_told_, true)) events.emplace_back(Left{job_.first_rank + local_rank});
  return events;
}

Pmi1Node::Events Pmi1Node::OnLeftElsewhere(const std::string& what) {
  left_elsewhere_ = what;
  Events events;
  LookForLeft(&events);
  return events;
}

MpiUse Pmi1Node::UseOf(int local_rank) const {
  switch (ranks_[static_cast<size_t>(local_rank)].state) {
    case State::kNew:
    case State::kUnused:
      return MpiUse::kNever;
    case State::kInitialized:
      return MpiUse::kInside;
    case State::kLeft:
      return MpiUse::kLeft;
    case State::kRefused:
    case State::kFinalized:
    case State::kEnded:
      break;
  }
  return MpiUse::kFinalized;
}

int Pmi1Node::RankInMpi() const {
  const auto is_in_mpi = [](const Rank& rank) { return rank.state == State::kInitialized; };
  auto found =
      std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return is_in_mpi(rank) && rank.in_barrier; });
  if (found == ranks_.end()) found = std::find_if(ranks_.begin(), ranks_.end(), is_in_mpi);
  return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
}

void Pmi1Node::LookForLeft(Events* events) const {
  const int waits = RankInMpi();
  if (waits < 0) return;
  const bool in_barrier = ranks_[static_cast<size_t>(waits)].in_barrier;
  const auto gone = std::find_if(ranks_.begin(), ranks_.end(), [in_barrier](const Rank& rank) {
    return IsClosed(rank.state) && (rank.state != State::kEnded || (in_barrier && !rank.in_barrier));
  });
  if (gone != ranks_.end()) {
    const int rank = job_.first_rank + static_cast<int>(gone - ranks_.begin());
    events->emplace_back(Abandoned{waits, RankThatLeft(rank, "", gone->state == State::kEnded)});
  } else if (!left_elsewhere_.empty()) {
    events->emplace_back(Abandoned{waits, left_elsewhere_});
  }
}

std::vector<int> Pmi1Node::MissingInBarrier() const {
  std::vector<int> missing;
  for (size_t i = 0; i < ranks_.size() && in_barrier_ > 0; ++i) {
    if (!ranks_[i].in_barrier) missing.push_back(job_.first_rank + static_cast<int>(i));
  }
  return missing;
}

}  // namespace cohort::launcher
