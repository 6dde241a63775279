// Aligns the clocks of nodes by the calls that they make. No member ends a collective before every member has begun it,
// which bounds the difference of two clocks from both sides. No receive ends before its send has begun: one side. All
// calls of a while together bound it closely.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace cohort::launcher {

class NodeClocks {
 public:
  // Bounds count for at least this long, by the first node's clock: clocks drift apart.
  static constexpr uint64_t kWindowNs = 1'000'000'000;

  // When a node has been in a call: the latest beginning and the first end of its ranks, by its own clock. No end where
  // none is known: the record of a call that found all that it needed ends when it began, however late that was.
  struct Visit {
    size_t node = 0;
    uint64_t last_begun_ns = 0;
    std::optional<uint64_t> first_ended_ns;
  };

  explicit NodeClocks(size_t nodes) : wall_(nodes), known_(nodes) {}

  // A node's steady and wall clocks at one moment. Wall clocks count where no call has bound a node to the others.
  void OnWallClock(size_t node, uint64_t steady_ns, uint64_t unix_ns);
  // A call of several nodes, which ascend. The ends are those of members that wait for every other one (AwaitsOthers).
  void OnCall(const std::vector<Visit>& visits);

  // The time by node 0's clock of a moment by that of `node`.
  uint64_t Aligned(size_t node, uint64_t ns) const;
  // The time by node 0's steady clock of a moment of the wall clock. Nothing: node 0 has not told its clocks.
  std::optional<uint64_t> AtWallClock(uint64_t unix_ns) const;
  // The largest error of Aligned. Nothing: only wall clocks are known, or not even those.
  std::optional<uint64_t> ErrorOf(size_t node) const { return known_[node].error; }
  // The largest of all nodes that calls have bound, and how many have only their wall clocks.
  uint64_t LargestError() const;
  size_t Unbound() const;
  // How often calls have contradicted what was known: a clock has jumped.
  uint64_t jumps() const { return jumps_; }

  // Takes what calls have said since into account. Until then Aligned gives the same for the same moment.
  void Update();

 private:
  struct Bounds {
    int64_t low = INT64_MIN / 4;
    int64_t high = INT64_MAX / 4;
    bool empty() const { return low > high; }
    bool whole() const { return low > INT64_MIN / 4 && high < INT64_MAX / 4; }
    void Narrow(const Bounds& other);
  };
  // The difference of two clocks: the second node's minus the first one's.
  struct Pair {
    Bounds present, before;
    uint64_t since_ns = 0;  // of `present`
    Bounds Both() const;
  };
  struct Known {
    int64_t difference = 0;  // of the node's clock to node 0's
    std::optional<uint64_t> error;
  };
  static constexpr size_t kMostPairs = 4096;

  void OnBounds(size_t first, size_t second, const Bounds& bounds, uint64_t now_ns);

  std::map<std::pair<size_t, size_t>, Pair> pairs_;
  std::vector<std::optional<int64_t>> wall_;  // wall minus steady clock
  std::vector<Known> known_;
  uint64_t jumps_ = 0;
};

}  // namespace cohort::launcher
