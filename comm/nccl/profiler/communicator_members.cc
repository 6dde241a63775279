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

void CommunicatorMembers::Continue(Deadline deadline) {
  const std::vector<NcclRecorder::Unresolved> unresolved = recorder_.UnresolvedCommunicators();
  std::erase_if(searches_, [&unresolved](const auto& entry) {
    return std::none_of(unresolved.begin(), unresolved.end(),
                        [&entry](const auto& one) { return one.communicator == entry.first; });
  });
  for (const NcclRecorder::Unresolved& communicator : unresolved) {
    if (deadline.passed()) return;
    const Clock::time_point now = Clock::now();
    const auto [found, fresh] = searches_.try_emplace(communicator.communicator);
    Search& search = found->second;
    if (fresh) search.begun = search.due = now;
    if (search.step != Step::kGivenUp && now >= search.due) Continue(communicator, &search, deadline);
  }
}

void CommunicatorMembers::Continue(const NcclRecorder::Unresolved& communicator, Search* search, Deadline deadline) {
  const CommunicatorFacts& facts = communicator.facts;
  const int size = facts.size > 0 ? facts.size : identity_.world_size;
  if (size == 1) return recorder_.SetMembers(communicator.communicator, {identity_.rank});
  if (size > kMostRanks) search->step = Step::kGivenUp;
  if (search->step == Step::kSay) Say(facts, search, deadline);
  if (search->step == Step::kCollect) Collect(facts, size, search, deadline);
  if (search->step == Step::kPublish) Publish(communicator, search, deadline);
  if (search->step == Step::kAwaitList) AwaitList(communicator, search, deadline);
}

void CommunicatorMembers::Say(const CommunicatorFacts& facts, Search* search, Deadline deadline) {
  const absl::Status said = bootstrap_
                                .CallVariable({.kind = VariableCall::Kind::kSet,
                                               .key = KeyOf(facts.hash, std::to_string(facts.rank)),
                                               .value = std::to_string(identity_.rank)},
                                              deadline)
                                .status();
  if (said.ok()) {
    search->step = facts.rank == 0 ? Step::kCollect : Step::kAwaitList;
  } else if (!absl::IsDeadlineExceeded(said) || Clock::now() - search->begun > kCollectFor) {
    search->step = Step::kGivenUp;
  } else {
    Later(search);
  }
}

void CommunicatorMembers::Collect(const CommunicatorFacts& facts, int size, Search* search, Deadline deadline) {
  while (search->next < size) {
    if (deadline.passed()) return;
    const std::string key = KeyOf(facts.hash, std::to_string(search->next));
    const absl::StatusOr<runtime::VariableResult> said =
        bootstrap_.CallVariable({.kind = VariableCall::Kind::kGet, .key = key}, Deadline::After(kGlance));
    if (!said.ok() && Clock::now() - search->begun < kCollectFor) return Later(search);
    search->world_ranks.push_back(said.ok() ? ReadRank(said->value, identity_.world_size).value_or(-1) : -1);
    ++search->next;
    search->interval = milliseconds(20);
    if (said.ok()) (void)bootstrap_.CallVariable({.kind = VariableCall::Kind::kDelete, .key = key}, deadline);
  }
  std::vector<int>& members = search->world_ranks;
  if (facts.size == 0) {  // then they were looked for in the whole world
    while (!members.empty() && members.back() < 0) members.pop_back();
  }
  search->step = members.empty() || lists_ >= kMostLists ? Step::kGivenUp : Step::kPublish;
  if (search->step == Step::kPublish) ++lists_;
}

void CommunicatorMembers::Publish(const NcclRecorder::Unresolved& communicator, Search* search, Deadline deadline) {
  if (deadline.passed()) return;
  const absl::Status put =
      bootstrap_.Put(KeyOf(communicator.facts.hash, "members"), Pack(search->world_ranks), deadline);
  if (absl::IsDeadlineExceeded(put) && Clock::now() - search->begun < kAwaitListFor) return Later(search);
  recorder_.SetMembers(communicator.communicator, std::move(search->world_ranks));
}

void CommunicatorMembers::AwaitList(const NcclRecorder::Unresolved& communicator, Search* search, Deadline deadline) {
  if (deadline.passed()) return;
  const absl::StatusOr<std::string> list =
      bootstrap_.Get(KeyOf(communicator.facts.hash, "members"), Deadline::After(kGlance));
  if (list.ok()) {
    std::vector<int> members = Unpack(*list, identity_.world_size);
    if (members.empty()) search->step = Step::kGivenUp;
    if (!members.empty()) recorder_.SetMembers(communicator.communicator, std::move(members));
  } else if (Clock::now() - search->begun > kAwaitListFor) {
    search->step = Step::kGivenUp;
  } else {
    Later(search);
  }
}

}  // namespace cohort::comm::nccl_profiler
