#include "cohort/trainer/parallel/pipeline/shared_weights.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/checkpoint/checkpoint.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Holder = WeightOfStages::Holder;

bool Contains(const std::vector<Holder>& holders, const Holder& holder) {
  return std::find(holders.begin(), holders.end(), holder) != holders.end();
}

const PipelineStage* StageAt(const std::vector<PipelineStage>& stages, int index) {
  const auto found = std::find_if(stages.begin(), stages.end(), [=](const auto& each) { return each.index == index; });
  return found == stages.end() ? nullptr : &*found;
}

// The lines of `text`, each of which ends.
std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// A line for each holder: "<the first holder that has its tensor> <what it is>"; empty where the holder is elsewhere.
std::vector<std::string> DescribeCopies(const WeightOfStages& weight, const std::vector<PipelineStage>& stages) {
  std::vector<std::string> lines;
  std::map<const void*, size_t> first;  // by tensor implementation
  for (size_t i = 0; i < weight.holders.size(); ++i) {
    std::string& line = lines.emplace_back();
    const PipelineStage* const stage = StageAt(stages, weight.holders[i].stage);
    if (stage == nullptr) continue;
    const at::Tensor copy = SharedParameterOf(*stage, weight.holders[i].name);
    const size_t same = first.try_emplace(copy.unsafeGetTensorImpl(), i).first->second;
    line = std::to_string(same) + " " + DescribeTensor("part", copy.scalar_type(), copy.sizes().vec()) +
           (copy.requires_grad() ? "" : " (frozen)");
  }
  return lines;
}

std::string PartOf(const std::string& line) { return line.substr(line.find(' ') + 1); }

}  // namespace

std::vector<WeightOfStages> JoinPairs(const std::vector<SharedWeight>& pairs) {
  std::vector<WeightOfStages> weights;
  std::vector<Holder> others;
  for (const SharedWeight& pair : pairs) {
    const Holder one{pair.stage, pair.name}, other{pair.other_stage, pair.other_name};
    others.push_back(other);
    WeightOfStages joined;
    for (auto weight = weights.begin(); weight != weights.end();) {
      if (!Contains(weight->holders, one) && !Contains(weight->holders, other)) {
        ++weight;
        continue;
      }
      joined.holders.insert(joined.holders.end(), weight->holders.begin(), weight->holders.end());
      weight = weights.erase(weight);
    }
    for (const Holder& holder : {one, other}) {
      if (!Contains(joined.holders, holder)) joined.holders.push_back(holder);
    }
    weights.push_back(std::move(joined));
  }
  for (WeightOfStages& weight : weights) {
    const auto first = std::find_if(weight.holders.begin(), weight.holders.end(),
                                    [&](const Holder& holder) { return !Contains(others, holder); });
    if (first != weight.holders.end()) std::rotate(weight.holders.begin(), first, first + 1);
  }
  return weights;
}

at::Tensor SharedParameterOf(const PipelineStage& stage, const std::string& name) {
  for (const auto& item : stage.module->named_parameters()) {
    if (NameInWhole(item.value(), item.key()) == name || UnwrappedName(item.key()) == name) return item.value();
  }
  TORCH_CHECK(false, "Pipeline: stage ", stage.index, " has no parameter ", name, " to share");
}

void CheckSharedWeights(const std::vector<WeightOfStages>& weights, const std::vector<PipelineStage>& stages,
                        int stage_count) {
  std::map<const void*, std::pair<size_t, const Holder*>> seen;  // by tensor implementation
  for (size_t i = 0; i < weights.size(); ++i) {
    TORCH_CHECK(weights[i].holders.size() > 1, "Pipeline: weight ", weights[i].name(), " of stage ",
                weights[i].holders.front().stage, " is shared with itself");
    for (const Holder& holder : weights[i].holders) {
      TORCH_CHECK(holder.stage >= 0 && holder.stage < stage_count, "Pipeline: weight ", holder.name,
                  " is shared by stage ", holder.stage, ", and there are ", stage_count, " stages");
      const PipelineStage* const stage = StageAt(stages, holder.stage);
      if (stage == nullptr) continue;
      const at::Tensor parameter = SharedParameterOf(*stage, holder.name);
      const auto [known, first] = seen.insert({parameter.unsafeGetTensorImpl(), {i, &holder}});
      TORCH_CHECK(first || known->second.first == i, "Pipeline: ", known->second.second->name, " of stage ",
                  known->second.second->stage, " and ", holder.name, " of stage ", holder.stage,
                  " are one parameter, and shared_weights shares them as two; give a pair that connects them, or one "
                  "of the names alone");
    }
  }
}

std::vector<std::vector<int>> NumberCopies(comm::Communicator& group, const std::vector<WeightOfStages>& weights,
                                           const std::vector<PipelineStage>& stages) {
  if (weights.empty()) return {};
  std::string mine;  // of all ranks together, a line for each holder
  for (const WeightOfStages& weight : weights) {
    for (const std::string& line : DescribeCopies(weight, stages)) mine += line + "\n";
  }
  std::vector<std::string> lines = LinesOf(mine);
  for (const std::string& text : GatherTexts(group, mine, "making a pipeline", default_timeout())) {
    const std::vector<std::string> theirs = LinesOf(text);
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].empty()) lines[i] = theirs[i];
    }
  }
  std::vector<std::vector<int>> numbers;
  size_t begin = 0;
  for (const WeightOfStages& weight : weights) {
    std::vector<int>& own = numbers.emplace_back();
    int copies = 0;
    for (size_t i = 0; i < weight.holders.size(); ++i) {
      const std::string &first = lines[begin], &line = lines[begin + i];
      const size_t same = std::stoul(line);
      own.push_back(same == i ? copies++ : own[same]);
      if (PartOf(line) == PartOf(first)) continue;
      throw DistributedError(absl::StatusCode::kFailedPrecondition,
                             "Pipeline: stages " + std::to_string(weight.holders.front().stage) + " and " +
                                 std::to_string(weight.holders[i].stage) +
                                 " have different parts of the shared weight " + weight.name() + ": " + PartOf(first) +
                                 ", and " + PartOf(line));
    }
    begin += weight.holders.size();
  }
  return numbers;
}

}  // namespace cohort::trainer
