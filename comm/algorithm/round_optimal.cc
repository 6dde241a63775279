#include "cohort/comm/algorithm/round_optimal.h"

#include <algorithm>

#include "cohort/comm/algorithm/pattern.h"

namespace cohort::comm {
namespace {

std::vector<int> SkipsOf(int size) {
  std::vector<int> skips(static_cast<size_t>(CeilLog2(size)) + 1, size);
  for (size_t k = skips.size() - 1; k-- > 0;) skips[k] = skips[k + 1] - skips[k + 1] / 2;
  return skips;
}

// The block of the first phase that comes to rank r by the greedy way of skips: the smallest skip on it. For r > 0.
int FirstBlock(const std::vector<int>& skips, int r) {
  for (size_t k = skips.size() - 1; k-- > 0;) {
    if (skips[k] == r) return static_cast<int>(k);
    if (skips[k] < r) r -= skips[k];
  }
  return static_cast<int>(skips.size()) - 1;
}

// The search for what one rank receives.
class Search {
 public:
  Search(const std::vector<int>& skips, int relative)
      : skips_(skips),
        rounds_(static_cast<int>(skips.size()) - 1),
        goal_(int64_t{skips[skips.size() - 1]} + relative),
        nearest_(2 * int64_t{skips[skips.size() - 1]}),
        smaller_(skips.size() + 1),
        larger_(skips.size() + 1) {
    for (int e = 0; e <= rounds_ + 1; ++e) {
      smaller_[Place(e)] = e - 1;
      larger_[Place(e)] = e + 1;
    }
    first_block_ = FirstBlock(skips, relative);
    Remove(first_block_);
  }

  // Per k what comes in it, as BroadcastSchedule::received_.
  std::vector<int32_t> Run() {
    Walk(0, smaller_[Place(rounds_ + 1)]);
    for (int32_t& block : found_) block = block == rounds_ ? first_block_ : block - rounds_;
    return std::move(found_);
  }

 private:
  static size_t Place(int e) { return static_cast<size_t>(e); }
  int64_t Skip(int e) const { return skips_[Place(e)]; }
  int Round() const { return static_cast<int>(found_.size()); }
  void Remove(int e) {
    smaller_[Place(larger_[Place(e)])] = smaller_[Place(e)];
    if (smaller_[Place(e)] >= 0) larger_[Place(smaller_[Place(e)])] = larger_[Place(e)];
  }

  // Goes on from `here`, a rank on a way to the goal, by the skips left from the e-th down, furthest first. Whatever is
  // close enough to have sent in the present round, and further off than what was found before, is that round's.
  void Walk(int64_t here, int e) {
    for (; e >= 0; e = smaller_[Place(e)]) {
      const int64_t next = here + Skip(e);
      if (Round() == rounds_ || next > goal_ - Skip(Round()) || next >= nearest_) continue;
      if (next <= goal_ - Skip(Round() + 1)) Walk(next, e);
      if (Round() == rounds_ || here > goal_ - Skip(Round() + 1)) return;
      nearest_ = next;
      found_.push_back(e);
      Remove(e);
    }
  }

  const std::vector<int>& skips_;
  const int rounds_;
  const int64_t goal_;
  int64_t nearest_;
  int first_block_ = 0;
  std::vector<int> smaller_, larger_;  // of each skip, the next among those that are left
  std::vector<int32_t> found_;
};

}  // namespace

BroadcastSchedule::BroadcastSchedule(int size, int relative, int32_t blocks)
    : size_(size), relative_(relative), blocks_(blocks), skips_(SkipsOf(size)) {
  const auto q = static_cast<int32_t>(skips_.size()) - 1;
  rounds_ = blocks - 1 + q;
  skipped_ = (q - (blocks - 1) % q) % q;
  if (relative > 0) received_ = Search(skips_, relative).Run();
  for (int32_t k = 0; k < q; ++k) {
    const int to = (relative + skips_[static_cast<size_t>(k)]) % size;
    const int32_t none = -blocks - 2 * q;  // the root needs nothing
    if (relative == 0) received_.push_back(none);
    sent_.push_back(to == 0 ? none : Search(skips_, to).Run()[static_cast<size_t>(k)]);
  }
}

int32_t BroadcastSchedule::BlockIn(int32_t entry, int32_t phase) const {
  const auto q = static_cast<int32_t>(received_.size());
  const int32_t block = entry - skipped_ + q * phase;
  return block < 0 ? -1 : std::min(block, blocks_ - 1);  // in the last phase what lies beyond is the last block
}

BroadcastSchedule::Round BroadcastSchedule::At(int32_t round) const {
  const auto q = static_cast<int32_t>(received_.size());
  const int32_t turn = round + skipped_;
  const auto k = static_cast<size_t>(turn % q);
  return {.to = Modulo(relative_ + skips_[k], size_),
          .sent = BlockIn(sent_[k], turn / q),
          .from = Modulo(relative_ - skips_[k], size_),
          .received = BlockIn(received_[k], turn / q)};
}

}  // namespace cohort::comm
