#include "cohort/comm/nccl/library/nccl_agreement.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "cohort/comm/nccl/library/nccl_api.h"
#include "cohort/comm/nccl/library/store_lookup.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/call_compare.h"

namespace cohort::comm::nccl {
namespace {

constexpr char kSeparator = '\n';

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == kSeparator) {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

// "ranks 0-2: NCCL 2.28.9; rank 3: NCCL 2.27.5".
std::string Listed(const std::map<std::string, std::vector<int>>& ranks_of) {
  std::string text;
  for (const auto& [what, ranks] : ranks_of) {
    text += (text.empty() ? "" : "; ") + runtime::DescribeRanks(ranks) + ": " + what;
  }
  return text;
}

std::string FirstCallOf(const GroupContext& group, int rank) {
  return "waiting for rank " + std::to_string(group.members[static_cast<size_t>(rank)]) +
         " to make the group's first call on CUDA memory";
}

absl::Status Unreadable(const GroupContext& group, int rank, const std::string& what) {
  return absl::InternalError("rank " + std::to_string(group.members[static_cast<size_t>(rank)]) + " sent " + what +
                             " NCCL that can't be read; all ranks must run the same Cohort");
}

absl::StatusOr<Decision> DecideForAll(const GroupContext& group, const std::string& name, const Offer& mine,
                                      const std::function<absl::StatusOr<std::string>()>& make_id,
                                      runtime::Deadline deadline, const Waits& waits) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < group.size; ++rank) keys.push_back(name + "/" + std::to_string(rank));
  const StoreLookup lookup(group.runtime, std::move(keys), deadline, waits.wake);
  std::vector<Offer> offers{mine};
  for (int rank = 1; rank < group.size; ++rank) {
    const auto place = static_cast<size_t>(rank - 1);
    COHORT_RETURN_IF_ERROR(waits.drive([&] { return lookup.Has(place); }, FirstCallOf(group, rank)));
    COHORT_ASSIGN_OR_RETURN(const std::string text, lookup.Get(place));
    offers.emplace_back();
    if (!Parse(text, &offers.back())) return Unreadable(group, rank, "an offer for");
  }
  Decision decision = Decide(offers, group.members);
  if (decision.kind == Decision::Kind::kNew) {
    COHORT_ASSIGN_OR_RETURN(decision.text, make_id());
  }
  COHORT_RETURN_IF_ERROR(group.runtime->Put(name + "/all", Serialize(decision), deadline));
  return decision;
}

}  // namespace

namespace {

// Decides what does not depend on the kind of communicator.
Decision DecideKind(std::span<const Offer> offers, std::span<const int> members) {
  std::map<std::string, std::vector<int>> versions, settings, absent;
  bool shrinkable = !offers[0].revoked.empty(), reusable = !offers[0].idle.empty();
  for (size_t i = 0; i < offers.size(); ++i) {
    const Offer& offer = offers[i];
    if (offer.version == 0) absent[offer.why].push_back(members[i]);
    versions["NCCL " + VersionText(offer.version)].push_back(members[i]);
    settings[offer.settings.empty() ? "none" : offer.settings].push_back(members[i]);
    shrinkable = shrinkable && offer.revoked == offers[0].revoked;
    reusable = reusable && offer.idle == offers[0].idle;
  }
  if (!absent.empty()) return {Decision::Kind::kStaged, Listed(absent)};
  if (versions.size() > 1) {
    return {Decision::Kind::kRefuse, "the ranks have different versions of NCCL, which can't work together (" +
                                         Listed(versions) +
                                         "): install one, or name it in COHORT_NCCL_LIBRARY on all nodes"};
  }
  if (settings.size() > 1) {
    return {Decision::Kind::kRefuse,
            "the ranks have different settings for NCCL, which must be equal (" + Listed(settings) + ")"};
  }
  if (shrinkable) return {Decision::Kind::kShrink, ""};
  if (reusable) return {Decision::Kind::kReuse, offers[0].idle};
  return {Decision::Kind::kNew, ""};
}

// As characters: the bits of a number below 10.
char ToText(const Abilities& abilities) {
  return static_cast<char>('0' + (abilities.float8 ? 1 : 0) + (abilities.kernels ? 2 : 0) + (abilities.stops ? 4 : 0));
}
bool Parse(char text, Abilities* abilities) {
  abilities->float8 = ((text - '0') & 1) != 0;
  abilities->kernels = ((text - '0') & 2) != 0;
  abilities->stops = ((text - '0') & 4) != 0;
  return text >= '0' && text <= '7';
}

}  // namespace

Decision Decide(std::span<const Offer> offers, std::span<const int> members) {
  Decision decision = DecideKind(offers, members);
  const auto all = [&](bool Abilities::* ability) {
    return std::all_of(offers.begin(), offers.end(), [=](const Offer& offer) { return offer.abilities.*ability; });
  };
  decision.abilities = {all(&Abilities::float8), all(&Abilities::kernels), all(&Abilities::stops)};
  return decision;
}

std::string Serialize(const Offer& offer) {
  return std::to_string(offer.version) + kSeparator + ToText(offer.abilities) + kSeparator + offer.idle + kSeparator +
         offer.revoked + kSeparator + offer.settings + kSeparator + offer.why;
}

bool Parse(const std::string& text, Offer* offer) {
  const std::vector<std::string> lines = Lines(text);
  if (lines.size() < 6) return false;
  const auto [end, error] = std::from_chars(lines[0].data(), lines[0].data() + lines[0].size(), offer->version);
  if (error != std::errc() || end != lines[0].data() + lines[0].size() || offer->version < 0) return false;
  if (lines[1].size() != 1 || !Parse(lines[1][0], &offer->abilities)) return false;
  offer->idle = lines[2];
  offer->revoked = lines[3];
  offer->settings = lines[4];
  offer->why = lines[5];
  return true;
}

std::string Serialize(const Decision& decision) {
  return std::string{static_cast<char>(decision.kind), ToText(decision.abilities)} + decision.text;
}

bool Parse(const std::string& text, Decision* decision) {
  if (text.size() < 2 || !Parse(text[1], &decision->abilities)) return false;
  decision->kind = static_cast<Decision::Kind>(text[0]);
  decision->text = text.substr(2);
  switch (decision->kind) {
    case Decision::Kind::kNew:
      return decision->text.size() == sizeof(ncclUniqueId::internal);
    case Decision::Kind::kReuse:
    case Decision::Kind::kShrink:
    case Decision::Kind::kStaged:
    case Decision::Kind::kRefuse:
      return true;
  }
  return false;
}

absl::StatusOr<Decision> Agree(const GroupContext& group, const std::string& name, const Offer& mine,
                               const std::function<absl::StatusOr<std::string>()>& make_id, runtime::Deadline deadline,
                               const Waits& waits) {
  if (group.rank == 0) return DecideForAll(group, name, mine, make_id, deadline, waits);
  COHORT_RETURN_IF_ERROR(group.runtime->Put(name + "/" + std::to_string(group.rank), Serialize(mine), deadline));
  const StoreLookup lookup(group.runtime, {name + "/all"}, deadline, waits.wake);
  COHORT_RETURN_IF_ERROR(waits.drive([&] { return lookup.Has(0); }, FirstCallOf(group, 0) + ", or another rank"));
  COHORT_ASSIGN_OR_RETURN(const std::string text, lookup.Get(0));
  Decision decision;
  return Parse(text, &decision) ? absl::StatusOr<Decision>(decision) : Unreadable(group, 0, "a decision about");
}

}  // namespace cohort::comm::nccl
