#include "cohort/comm/plan/expression.h"

#include <utility>

namespace cohort::comm {

ExpressionTable::ExpressionTable(int ranks) : ranks_(ranks), words_((static_cast<size_t>(ranks) + 63) / 64) {}

ExpressionTable::Id ExpressionTable::Leaf(int rank, int32_t chunk, int32_t element) {
  const auto [entry, added] = index_.try_emplace({-1 - int64_t{rank}, chunk}, static_cast<Id>(nodes_.size()));
  if (added) {
    Node node;
    node.rank = rank;
    node.chunk = chunk;
    node.element = element;
    nodes_.push_back(node);
    sets_.resize(sets_.size() + words_, 0);
    sets_[sets_.size() - words_ + static_cast<size_t>(rank) / 64] |= uint64_t{1} << (rank % 64);
  }
  return entry->second;
}

ExpressionTable::Id ExpressionTable::Combine(Id left, Id right) {
  const Node& a = nodes_[static_cast<size_t>(left)];
  const Node& b = nodes_[static_cast<size_t>(right)];
  if (a.element != b.element) return kUnrelated;
  const auto [entry, added] = index_.try_emplace({left, right}, static_cast<Id>(nodes_.size()));
  if (!added) return entry->second;
  const size_t l = static_cast<size_t>(left) * words_;
  const size_t r = static_cast<size_t>(right) * words_;
  for (size_t w = 0; w < words_; ++w) {
    if ((sets_[l + w] & sets_[r + w]) != 0) {
      index_.erase(entry);
      return kOverlapping;
    }
  }
  Node node;
  node.left = left;
  node.right = right;
  node.element = a.element;
  node.contributions = a.contributions + b.contributions;
  for (size_t w = 0; w < words_; ++w) sets_.push_back(sets_[l + w] | sets_[r + w]);
  nodes_.push_back(node);
  return entry->second;
}

bool ExpressionTable::Complete(Id id) const { return nodes_[static_cast<size_t>(id)].contributions == ranks_; }

std::string ExpressionTable::Text(Id id) const {
  const Node& node = nodes_[static_cast<size_t>(id)];
  if (node.left == kUnwritten) return "x" + std::to_string(node.rank);
  return "(" + Text(node.left) + " op " + Text(node.right) + ")";
}

std::string ExpressionTable::ToString(Id id) const {
  if (id == kUnwritten) return "nothing";
  const Node& node = nodes_[static_cast<size_t>(id)];
  if (node.left == kUnwritten) return "in[" + std::to_string(node.chunk) + "] of rank " + std::to_string(node.rank);
  return Text(id) + "[" + std::to_string(node.element) + "]";
}

}  // namespace cohort::comm
