#include "tools/plan/explain.h"

#include <nlohmann/json.hpp>

#include "cohort/comm/select/explanation.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::tools {
namespace {

constexpr int kFormat = 1;  // changes when a key is removed or means something else

}  // namespace

absl::StatusOr<std::string> ExplainJson(comm::CollectiveKind kind, int64_t bytes, const comm::GroupTopology& topology,
                                        const comm::Tuning& tuning) {
  COHORT_ASSIGN_OR_RETURN(const comm::Explanation explained,
                          comm::ExplainAlternatives(kind, bytes, topology, tuning, {}));
  nlohmann::ordered_json document = {{"format", kFormat},
                                     {"collective", comm::Name(kind)},
                                     {"bytes", bytes},
                                     {"ranks", topology.size},
                                     {"hosts", topology.nodes},
                                     {"windows", topology.windows},
                                     {"ruled", explained.choice.ruled},
                                     {"algorithms", nlohmann::ordered_json::array()},
                                     {"table", tuning.ToString()}};
  for (const comm::Alternative& one : explained.alternatives) {
    nlohmann::ordered_json described = {{"name", one.algorithm->name}};
    if (one.why_not.empty()) {
      described["pieces"] = one.choice.pieces;
      described["microseconds"] = one.choice.predicted_us;
    } else {
      described["why_not"] = one.why_not;
    }
    described["chosen"] = one.chosen;
    described["runner_up"] = one.runner_up;
    described["fallback"] = one.fallback;
    document["algorithms"].push_back(described);
  }
  return document.dump(2) + "\n";
}

}  // namespace cohort::tools
