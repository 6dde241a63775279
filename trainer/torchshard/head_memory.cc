#include "cohort/trainer/torchshard/head_memory.h"

namespace cohort::trainer::torchshard {

int64_t PredictHeadMemory(const HeadMemoryFormula& formula) {
  const int64_t classes = (formula.classes + formula.ranks - 1) / formula.ranks;
  const int64_t weights = (formula.features + 1) * classes;  // with the bias
  const int64_t logits = formula.batch * classes;
  const int64_t momentum = (4 * weights + formula.replicas - 1) / formula.replicas;
  const int64_t state = 4 * weights + 4 * weights + momentum;
  return formula.autocast ? state + 2 * 2 * weights + 2 * 2 * logits : state + 2 * 4 * logits;
}

}  // namespace cohort::trainer::torchshard
