#include "cohort/trainer/parallel/pipeline/schedule/picture.h"

#include <algorithm>
#include <vector>

namespace cohort::trainer {

std::string DrawSchedule(const Schedule& schedule, const Timing& timing) {
  const bool several = schedule.stages > schedule.ranks;
  std::vector<std::vector<std::string>> cells(schedule.by_rank.size(),
                                              std::vector<std::string>(static_cast<size_t>(timing.total), "."));
  size_t width = 1;
  for (size_t rank = 0; rank < cells.size(); ++rank) {
    for (size_t i = 0; i < schedule.by_rank[rank].size(); ++i) {
      const Action& action = schedule.by_rank[rank][i];
      const Span& span = timing.by_rank[rank][i];
      if (!IsCompute(action.kind)) continue;
      for (int64_t at = span.begin; at < span.end; ++at) {
        std::string& cell = cells[rank][static_cast<size_t>(at)];
        cell = at > span.begin ? "="
               : several       ? ToString(action)
                               : Name(action.kind) + std::to_string(action.micro_batch);
        width = std::max(width, cell.size());
      }
    }
  }
  std::string text;
  const size_t label = std::to_string(cells.size() - 1).size();
  for (size_t rank = 0; rank < cells.size(); ++rank) {
    const std::string number = std::to_string(rank);
    text += "rank " + std::string(label - number.size(), ' ') + number + " ";
    for (const std::string& cell : cells[rank]) text += " " + std::string(width - cell.size(), ' ') + cell;
    text += "\n";
  }
  return text;
}

}  // namespace cohort::trainer
