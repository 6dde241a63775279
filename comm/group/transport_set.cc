#include "cohort/comm/group/transport_set.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/env.h"

namespace cohort::comm {
namespace {

constexpr std::chrono::seconds kPutTime{60};

constexpr char kDoesNotEncrypt[] =
    "it does not encrypt, as --encrypt-data (COHORT_ENCRYPT_DATA=1) asks; tcp does: let COHORT_TRANSPORTS name tcp, or "
    "unset it";

bool Allows(const std::string& allowed, std::string_view name) {
  if (allowed.empty()) return true;
  size_t begin = 0;
  while (begin <= allowed.size()) {
    size_t end = allowed.find(',', begin);
    if (end == std::string::npos) end = allowed.size();
    if (std::string_view(allowed).substr(begin, end - begin) == name) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

TransportSet& TransportSet::Of(runtime::Runtime& runtime) {
  if (runtime.attachment() == nullptr) runtime.set_attachment(std::make_shared<TransportSet>(runtime));
  return *static_cast<TransportSet*>(runtime.attachment());
}

TransportSet::TransportSet(runtime::Runtime& runtime, const std::vector<TransportEntry>& entries)
    : runtime_(runtime), entries_(entries) {
  runtime_.AddListener(this);
}

TransportSet::~TransportSet() {
  runtime::EngineLock lock(runtime_.engine());
  runtime_.RemoveListener(this);
  for (const auto& made : made_) {
    if (made->transport != nullptr) runtime_.engine().Remove(made->transport.get());
  }
  made_.clear();
}

void TransportSet::Add(std::unique_ptr<Transport> transport) {
  auto made = std::make_unique<Made>();
  made->name = std::string(transport->name());
  made->transport = std::move(transport);
  runtime_.engine().Add(made->transport.get(), /*first=*/true);
  made_.insert(made_.begin() + static_cast<ptrdiff_t>(added_), std::move(made));
  ++added_;
}

absl::Status TransportSet::Put(std::string_view key, std::string_view value) {
  return runtime_.Put(key, value, runtime::Deadline::After(kPutTime));
}

absl::StatusOr<std::string> TransportSet::Get(std::string_view key, runtime::Deadline deadline) {
  return runtime_.Get(key, deadline);
}

TransportSet::Made* TransportSet::FindMade(const TransportEntry& entry) {
  for (size_t i = added_; i < made_.size(); ++i) {
    if (made_[i]->name == entry.name) return made_[i].get();
  }
  return nullptr;
}

TransportSet::Made& TransportSet::MakeIfNeeded(const TransportEntry& entry) {
  if (Made* const known = FindMade(entry); known != nullptr) return *known;
  auto made = std::make_unique<Made>();
  made->name = std::string(entry.name);
  absl::StatusOr<std::unique_ptr<Transport>> transport = entry.make(runtime_, *this);
  made->status = transport.status();
  if (transport.ok()) {
    made->transport = *std::move(transport);
    runtime_.engine().Add(made->transport.get(), /*first=*/true);
  }
  made_.push_back(std::move(made));
  return *made_.back();
}

absl::StatusOr<bool> TransportSet::MayCarryData(const TransportEntry& entry) {
  if (entry.encryption != Encryption::kUnavailable) return true;
  if (!encrypt_data_.has_value()) {
    COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
    encrypt_data_ = environment.encrypt_data;
  }
  return !*encrypt_data_;
}

const std::string& TransportSet::WhyUnfit(const TransportEntry& entry) {
  const auto found = unfit_.find(entry.name);
  return found != unfit_.end() ? found->second : unfit_.emplace(entry.name, entry.fits(runtime_)).first->second;
}

absl::Status TransportSet::NoTransport(int world_rank, const std::string& allowed, const std::string& tried) const {
  bool known = allowed.empty();
  for (size_t i = 0; i < added_; ++i) known = known || Allows(allowed, made_[i]->name);
  for (const TransportEntry& entry : entries_) known = known || Allows(allowed, entry.name);
  if (!known) {
    return absl::InvalidArgumentError("CommunicatorOptions::transports: there is no transport \"" + allowed +
                                      "\"; there are " + Names());
  }
  const bool here = runtime_.node_of(world_rank) == runtime_.node_of(runtime_.rank());
  return absl::UnimplementedError(
      "no transport from rank " + std::to_string(runtime_.rank()) + " to rank " + std::to_string(world_rank) +
      ", which is on " + (here ? "the same" : "another") + " node (" + tried + ")" +
      (here && !allowed.empty() ? "; to try what links nodes on one machine, use dlaunch --simulate-nodes 2" : ""));
}

absl::StatusOr<std::string> TransportSet::Allowed(const std::string& allowed) {
  if (!allowed.empty()) return allowed;
  if (by_environment_.has_value()) return *by_environment_;
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  std::string text = environment.transports;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    const auto is = [&name](const TransportEntry& entry) { return entry.name == name; };
    if (std::none_of(entries_.begin(), entries_.end(), is)) {
      return absl::InvalidArgumentError("COHORT_TRANSPORTS=" + text + ": there is no transport \"" + name +
                                        "\"; there are " + Names());
    }
    begin = end + 1;
  }
  if (!text.empty()) text += ",shm";
  by_environment_ = text;
  return text;
}

std::string TransportSet::Names() const {
  std::string names;
  const auto add = [&names](std::string_view name) { names += (names.empty() ? "" : ", ") + std::string(name); };
  for (size_t i = 0; i < added_; ++i) add(made_[i]->name);
  for (const TransportEntry& entry : entries_) add(entry.name);
  return names;
}

absl::StatusOr<std::string_view> TransportSet::WhyUnused(const TransportEntry& entry, const std::string& options,
                                                         const std::string& allowed) {
  if (!Allows(allowed, entry.name)) {
    return options.empty() ? "not in COHORT_TRANSPORTS" : "not in CommunicatorOptions::transports";
  }
  COHORT_ASSIGN_OR_RETURN(const bool may_carry, MayCarryData(entry));
  if (!may_carry) return kDoesNotEncrypt;
  return allowed.empty() ? std::string_view(WhyUnfit(entry)) : "";
}

absl::StatusOr<Transport*> TransportSet::For(int world_rank, const std::string& options) {
  COHORT_ASSIGN_OR_RETURN(const std::string allowed, Allowed(options));
  std::string tried;
  const auto note = [&tried](std::string_view name, const std::string& why) {
    tried += (tried.empty() ? "" : "; ") + std::string(name) + ": " + why;
  };
  for (size_t i = 0; i < added_; ++i) {
    if (!Allows(allowed, made_[i]->name)) continue;
    if (made_[i]->transport->Reaches(world_rank)) return made_[i]->transport.get();
    note(made_[i]->name, "does not reach it");
  }
  for (const TransportEntry& entry : entries_) {
    COHORT_ASSIGN_OR_RETURN(const std::string_view unused, WhyUnused(entry, options, allowed));
    if (!unused.empty()) {
      note(entry.name, std::string(unused));
      continue;
    }
    Made& made = MakeIfNeeded(entry);
    if (made.transport == nullptr) {
      note(entry.name, std::string(made.status.message()));
    } else if (made.transport->Reaches(world_rank)) {
      return made.transport.get();
    } else {
      note(entry.name, "does not reach it");
    }
  }
  return NoTransport(world_rank, options, tried);
}

std::string_view TransportSet::Expected(int world_rank, const std::string& options) {
  const absl::StatusOr<std::string> allowed = Allowed(options);
  if (!allowed.ok()) return "";
  for (size_t i = 0; i < added_; ++i) {
    if (Allows(*allowed, made_[i]->name) && made_[i]->transport->Reaches(world_rank)) return made_[i]->name;
  }
  const bool on_this_node = runtime_.node_of(world_rank) == runtime_.node_of(runtime_.rank());
  for (const TransportEntry& entry : entries_) {
    const absl::StatusOr<std::string_view> unused = WhyUnused(entry, options, *allowed);
    if (!unused.ok() || !unused->empty()) continue;
    const Made* const made = FindMade(entry);
    const bool stays_on_host = entry.encryption == Encryption::kNotNeeded;
    if (made == nullptr ? stays_on_host == on_this_node
                        : made->transport != nullptr && made->transport->Reaches(world_rank)) {
      return entry.name;
    }
  }
  return "";
}

void TransportSet::OnRanksLost(const std::vector<int>& ranks, const std::string& text) {
  const absl::Status status = absl::UnavailableError(text);
  for (const auto& made : made_) {
    if (made->transport == nullptr) continue;
    for (const int rank : ranks) made->transport->OnPeerLost(rank, status);
  }
}

void TransportSet::OnGroupEnd(uint64_t group, uint32_t epoch) {
  for (const auto& made : made_) {
    if (made->transport != nullptr) made->transport->OnGroupEnd(group, epoch);
  }
}

void TransportSet::OnGroupFailure(const runtime::GroupFailure&) {}

}  // namespace cohort::comm
