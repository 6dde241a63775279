#include "cohort/launcher/control/parts/rank_wait.h"

#include <algorithm>
#include <numeric>

#include "cohort/runtime/segment/black_box.h"

namespace cohort::launcher {
namespace {

constexpr int kMostCalls = 64;

}  // namespace

runtime::RankWait ToRankWait(const v1::RankWait& message, int node) {
  runtime::RankWait wait;
  wait.rank = static_cast<int>(message.rank());
  wait.node = node;
  wait.waits = message.number() != 0;
  wait.bound = message.bound();
  for (int i = 0; i < std::min(message.calls_size(), kMostCalls); ++i) {
    const v1::AwaitedCall& call = message.calls(i);
    wait.calls.push_back({.group = call.group(),
                          .epoch = call.epoch(),
                          .sequence = call.sequence(),
                          .kind = static_cast<uint16_t>(call.kind()),
                          .peer = call.peer(),
                          .bytes = call.bytes(),
                          .device = call.device(),
                          .call = call.call(),
                          .site = call.site()});
  }
  const int most = std::min(message.latest_size(), runtime::kBlackBoxRecords);
  wait.progress.forgets = message.forgets() || most < message.latest_size();
  for (int i = 0; i < most; ++i) {
    const v1::LatestCall& call = message.latest(i);
    wait.progress.latest.push_back({.group = call.group(),
                                    .kind = static_cast<uint16_t>(call.kind()),
                                    .peer = call.peer(),
                                    .sequence = call.sequence(),
                                    .done = call.done()});
  }
  return wait;
}

std::optional<std::vector<int>> ToMembers(const v1::RankSet& set, uint32_t world_size) {
  std::vector<int> members;
  if (set.everyone()) {
    members.resize(world_size);
    std::iota(members.begin(), members.end(), 0);
    return members;
  }
  for (const uint32_t rank : set.ranks()) {
    if (rank >= world_size || static_cast<uint32_t>(members.size()) >= world_size) return std::nullopt;
    members.push_back(static_cast<int>(rank));
  }
  if (members.empty()) return std::nullopt;
  return members;
}

}  // namespace cohort::launcher
