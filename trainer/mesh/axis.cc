#include "cohort/trainer/mesh/axis.h"

namespace cohort::trainer {

int CanonicalOrder(std::string_view name) {
  int place = 0;
  for (const char* known : {kPipelineAxis, kReplicateAxis, kShardAxis, kContextAxis, kExpertAxis, kTensorAxis}) {
    if (name == known) return place;
    ++place;
  }
  return place;
}

}  // namespace cohort::trainer
