#include "cohort/comm/plan/expected_output.h"

namespace cohort::comm {
namespace {

// The element of the inputs that a reduced output chunk stands for.
int32_t ElementOf(const Plan& plan, int32_t chunk) {
  return EqualBlocksForm(plan.kind) == CollectiveKind::kReduceScatter ? plan.rank * plan.pieces + chunk : chunk;
}

}  // namespace

ExpressionTable::Id ExpectedOutput(const Plan& plan, int32_t chunk, ExpressionTable::Id found,
                                   ExpressionTable& expressions) {
  const int32_t block = chunk / plan.pieces;
  const int32_t piece = chunk % plan.pieces;
  const int32_t own = plan.rank * plan.pieces + piece;
  if (Reduces(plan.kind)) {
    const bool right =
        found >= 0 && expressions.Complete(found) && expressions.element(found) == ElementOf(plan, chunk);
    return right ? found : ExpressionTable::kUnwritten;
  }
  switch (EqualBlocksForm(plan.kind)) {
    case CollectiveKind::kBroadcast:
      return expressions.Leaf(plan.root, chunk, chunk);
    case CollectiveKind::kGather:
    case CollectiveKind::kAllGather:
      return expressions.Leaf(block, piece, piece);
    case CollectiveKind::kScatter:
      return expressions.Leaf(plan.root, own, own);
    case CollectiveKind::kAllToAll:
      return expressions.Leaf(block, own, own);
    default:
      return found;
  }
}

ExpressionTable::Id RankOrderFold(const Plan& plan, int32_t chunk, ExpressionTable& expressions) {
  const int32_t element = ElementOf(plan, chunk);
  ExpressionTable::Id fold = expressions.Leaf(0, element, element);
  for (int rank = 1; rank < plan.size; ++rank) {
    fold = expressions.Combine(fold, expressions.Leaf(rank, element, element));
  }
  return fold;
}

}  // namespace cohort::comm
