#include "cohort/comm/nccl/profiler/communicator_members.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"

namespace cohort::comm::nccl_profiler {
namespace {

using runtime::Deadline;
using runtime::VariableCall;
using std::chrono::milliseconds;

constexpr milliseconds kGlance{1};  // for what should be there
constexpr milliseconds kLongestInterval{1000};

std::string KeyOf(uint64_t hash, const std::string& what) {
  char text[48];
  std::snprintf(text, sizeof text, "nccl-plugin/%016llx/", static_cast<unsigned long long>(hash));
  return text + what;
}

std::optional<int> ReadRank(const std::string& text, int world_size) {
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || end != text.data() + text.size() || rank < 0 || rank >= world_size) return std::nullopt;
  return rank;
}

std::string Pack(const std::vector<int>& world_ranks) {
  std::string bytes;
  for (const int rank : world_ranks) {
    const auto value = static_cast<uint32_t>(rank);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

// Empty where it is no list.
std::vector<int> Unpack(const std::string& bytes, int world_size) {
  std::vector<int> world_ranks(bytes.size() / sizeof(uint32_t));
  for (size_t i = 0; i < world_ranks.size(); ++i) {
    uint32_t value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    world_ranks[i] = value < static_cast<uint32_t>(world_size) ? static_cast<int>(value) : -1;
  }
  return world_ranks;
}

}  // namespace

void CommunicatorMembers::Later(Search* search) {
  search->due = Clock::now() + search->interval;
  search->interval = std::min(2 * search->interval, kLongestInterval);
}

void CommunicatorMembers::Continue() {
  const std::vector<NcclRecorder::Unresolved> unresolved = recorder_.UnresolvedCommunicators();
  std::erase_if(searches_, [&unresolved](const auto& entry) {
    return std::none_of(unresolved.begin(), unresolved.end(),
                        [&entry](const auto& one) { return one.communicator == entry.first; });
  });
  const Clock::time_point until = Clock::now() + kSlice;
  for (const NcclRecorder::Unresolved& communicator : unresolved) {
    const Clock::time_point now = Clock::now();
    if (now >= until) return;
    const auto [found, fresh] = searches_.try_emplace(communicator.communicator);
    Search& search = found->second;
    if (fresh) search.begun = search.due = now;
    if (!search.given_up && now >= search.due) Continue(communicator, &search);
  }
}

void CommunicatorMembers::Continue(const NcclRecorder::Unresolved& communicator, Search* search) {
  const CommunicatorFacts& facts = communicator.facts;
  const int size = facts.size > 0 ? facts.size : identity_.world_size;
  if (size == 1) return recorder_.SetMembers(communicator.communicator, {identity_.rank});
  if (size > kMostRanks) {
    search->given_up = true;
    return;
  }
  if (!search->said) {
    const absl::StatusOr<runtime::VariableResult> set =
        bootstrap_.CallVariable({.kind = VariableCall::Kind::kSet,
                                 .key = KeyOf(facts.hash, std::to_string(facts.rank)),
                                 .value = std::to_string(identity_.rank)},
                                Deadline::After(kPatience));
    search->said = set.ok();
    search->given_up = !set.ok();
    if (!set.ok()) return;
  }
  if (facts.rank != 0) return AwaitList(communicator, search);
  if (Collect(facts, size, search)) Publish(communicator, search);
}

bool CommunicatorMembers::Collect(const CommunicatorFacts& facts, int size, Search* search) {
  const Clock::time_point until = Clock::now() + kSlice;
  while (search->next < size) {
    const std::string key = KeyOf(facts.hash, std::to_string(search->next));
    const absl::StatusOr<runtime::VariableResult> said =
        bootstrap_.CallVariable({.kind = VariableCall::Kind::kGet, .key = key}, Deadline::After(kGlance));
    if (!said.ok() && Clock::now() - search->begun < kCollectFor) {
      Later(search);
      return false;
    }
    search->world_ranks.push_back(said.ok() ? ReadRank(said->value, identity_.world_size).value_or(-1) : -1);
    ++search->next;
    search->interval = milliseconds(20);
    if (said.ok()) {
      (void)bootstrap_.CallVariable({.kind = VariableCall::Kind::kDelete, .key = key}, Deadline::After(kPatience));
    }
    if (Clock::now() >= until) break;
  }
  return search->next >= size;
}

void CommunicatorMembers::Publish(const NcclRecorder::Unresolved& communicator, Search* search) {
  std::vector<int> members = std::move(search->world_ranks);
  if (communicator.facts.size == 0) {  // then it was looked for in the whole world
    while (!members.empty() && members.back() < 0) members.pop_back();
  }
  search->given_up = members.empty() || lists_ >= kMostLists;
  if (search->given_up) return;
  ++lists_;
  (void)bootstrap_.Put(KeyOf(communicator.facts.hash, "members"), Pack(members), Deadline::After(kPatience));
  recorder_.SetMembers(communicator.communicator, std::move(members));
}

void CommunicatorMembers::AwaitList(const NcclRecorder::Unresolved& communicator, Search* search) {
  const absl::StatusOr<std::string> list =
      bootstrap_.Get(KeyOf(communicator.facts.hash, "members"), Deadline::After(kGlance));
  if (list.ok()) {
    std::vector<int> members = Unpack(*list, identity_.world_size);
    search->given_up = members.empty();
    if (!members.empty()) recorder_.SetMembers(communicator.communicator, std::move(members));
    return;
  }
  search->given_up = Clock::now() - search->begun > kAwaitListFor;
  Later(search);
}

}  // namespace cohort::comm::nccl_profiler
