#include "cohort/launcher/agent/mpi/pmi1_node.h"

#include <algorithm>
#include <utility>

#include "cohort/launcher/agent/mpi/left_news.h"

namespace cohort::launcher {
namespace {

constexpr char kInitRefused[] = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n";

std::string Refusal(std::string_view command, std::string_view why) {
  return "cmd=" + std::string(command) + " rc=-1 msg=" + std::string(why) + "\n";
}

}  // namespace

Pmi1Node::Pmi1Node(Job job) : job_(std::move(job)), ranks_(static_cast<size_t>(job_.local_ranks)) {
  for (size_t i = 0; i < std::min(ranks_.size(), job_.appnums.size()); ++i) ranks_[i].appnum = job_.appnums[i];
  if (!job_.mapping.empty()) Store("PMI_process_mapping", job_.mapping);
}

Pmi1Node::Events Pmi1Node::OnLine(int local_rank, std::string_view line) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (rank.state == State::kClosed) return {};
  if (rank.in_spawn && line != "endcmd") return {};
  const Pmi1Message message = Pmi1Message::Parse(line);
  if (message.command() == "spawn" && line.starts_with("mcmd=")) {
    rank.in_spawn = true;
    return {};
  }
  if (message.command() == "barrier_in" && rank.state == State::kInitialized) return EnterBarrier(local_rank);
  if (message.command() == "abort") {
    rank.state = State::kFinalized;
    return {Aborted{local_rank, message.GetNumber("exitcode", 1)}};
  }
  if (message.command() == "init" && rank.state == State::kInitialized) {
    return {Nested{local_rank}, Answer{local_rank, kInitRefused}};
  }
  std::string reply = std::exchange(rank.in_spawn, false)
                          ? Refusal("spawn_result", "MPI_Comm_spawn_is_not_served_by_dlaunch")
                          : Reply(rank, message);
  Events events = {Answer{local_rank, std::move(reply)}};
  if (message.command() == "init") LookForLeft(&events);
  return events;
}

std::string Pmi1Node::Reply(Rank& rank, const Pmi1Message& message) {
  const std::string& command = message.command();
  if (command == "init") {
    rank.used = true;
    if (message.GetNumber("pmi_version", 0) != 1) return kInitRefused;
    rank.state = State::kInitialized;
    return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
  }
  if (command == "get_maxes") {
    return "cmd=maxes kvsname_max=" + std::to_string(kMaxPmiName) + " keylen_max=" + std::to_string(kMaxPmiKey) +
           " vallen_max=" + std::to_string(kMaxPmiValue) + "\n";
  }
  if (command == "get_appnum") return "cmd=appnum appnum=" + std::to_string(rank.appnum) + "\n";
  if (command == "get_my_kvsname") return "cmd=my_kvsname kvsname=" + job_.name + "\n";
  if (command == "get_universe_size") return "cmd=universe_size size=" + std::to_string(job_.world_size) + "\n";
  if (command == "put") return Put(message);
  if (command == "get") return Get(message);
  if (command == "finalize") {
    rank.state = State::kFinalized;
    return "cmd=finalize_ack\n";
  }
  if (command == "barrier_in") return Refusal("barrier_out", "init_comes_first");
  if (command == "publish_name" || command == "unpublish_name" || command == "lookup_name") {
    const std::string verb = command.substr(0, command.find('_'));
    return Refusal(verb + "_result", "names_of_services_are_not_served_by_dlaunch");
  }
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

Pmi1Node::Events Pmi1Node::OnClosed(int local_rank) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  const State before = std::exchange(rank.state, State::kClosed);
  if (before == State::kClosed) return {};
  rank.finalized = before == State::kFinalized;
  Events events;
  LookForLeft(&events);
  if (rank.finalized) return events;
  if (job_.nodes > 1 && !std::exchange(end_is_told_, true)) events.emplace_back(Left{job_.first_rank + local_rank});
  return events;
}

Pmi1Node::Events Pmi1Node::OnLeftElsewhere(const std::string& what) {
  left_elsewhere_ = what;
  Events events;
  LookForLeft(&events);
  return events;
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
    return rank.state == State::kClosed && (!rank.finalized || (in_barrier && !rank.in_barrier));
  });
  if (gone != ranks_.end()) {
    const int rank = job_.first_rank + static_cast<int>(gone - ranks_.begin());
    events->emplace_back(Abandoned{waits, RankThatLeft(rank, "", gone->finalized)});
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
