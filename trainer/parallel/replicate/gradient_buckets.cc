#include "cohort/trainer/parallel/replicate/gradient_buckets.h"

#include <cstddef>
#include <map>
#include <utility>

namespace cohort::trainer {

std::vector<std::vector<int>> AssignBuckets(const std::vector<ParameterSize>& parameters, const std::vector<int>& order,
                                            const BucketLimits& limits) {
  struct Open {
    std::vector<int> members;
    int64_t bytes = 0;
    int64_t limit = 0;
  };
  std::map<std::pair<int, int>, Open> open;  // by (dtype, device)
  // Sorts buckets by the position at which their last member appears: the order in which they fill.
  std::map<size_t, std::vector<int>> closed;
  std::map<std::pair<int, int>, size_t> last_position;

  for (std::size_t position = 0; position < order.size(); ++position) {
    const ParameterSize& parameter = parameters[order[position]];
    if (parameter.alone) {
      closed.emplace(position, std::vector<int>{order[position]});
      continue;
    }
    const std::pair<int, int> key(parameter.dtype, parameter.device);
    auto [found, first] = open.try_emplace(key);
    Open& bucket = found->second;
    if (first) bucket.limit = limits.first_bytes;
    bucket.members.push_back(order[position]);
    bucket.bytes += parameter.bytes;
    last_position[key] = position;
    if (bucket.bytes >= bucket.limit) {
      closed.emplace(position, std::move(bucket.members));
      bucket = Open{};
      bucket.limit = limits.cap_bytes;
    }
  }
  for (auto& [key, bucket] : open) {
    if (!bucket.members.empty()) closed.emplace(last_position[key], std::move(bucket.members));
  }
  std::vector<std::vector<int>> buckets;
  buckets.reserve(closed.size());
  for (auto& [position, members] : closed) buckets.push_back(std::move(members));
  return buckets;
}

}  // namespace cohort::trainer
