// Symbols and reductions of symbols, stored once each: two values are equal exactly when their numbers are.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cohort::comm {

// The values in the checker's symbolic memory.
class ExpressionTable {
 public:
  using Id = int32_t;
  static constexpr Id kUnwritten = -1;
  static constexpr Id kOverlapping = -2;  // a contribution would count twice
  static constexpr Id kUnrelated = -3;    // operands are different elements

  explicit ExpressionTable(int ranks);

  // Chunk `chunk` of the input of `rank`. `element` says which chunks may be combined: equal elements of all ranks.
  Id Leaf(int rank, int32_t chunk, int32_t element);
  // left op right in this order, or kOverlapping or kUnrelated.
  Id Combine(Id left, Id right);

  int32_t element(Id id) const { return nodes_[static_cast<size_t>(id)].element; }
  // True when every rank's contribution is in it (once each).
  bool Complete(Id id) const;
  // "(x0 + x1)[3]" for messages.
  std::string ToString(Id id) const;

 private:
  struct Node {
    Id left = kUnwritten;
    Id right = kUnwritten;
    int32_t rank = 0;  // leaves
    int32_t chunk = 0;
    int32_t element = 0;
    int32_t contributions = 1;
  };
  std::string Text(Id id) const;

  int ranks_;
  size_t words_;  // of a set of ranks
  std::vector<Node> nodes_;
  std::vector<uint64_t> sets_;  // the ranks in node i, from i * words_
  std::map<std::pair<int64_t, int64_t>, Id> index_;
};

}  // namespace cohort::comm
