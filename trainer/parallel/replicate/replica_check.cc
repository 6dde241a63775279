#include "cohort/trainer/parallel/replicate/replica_check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "ATen/ATen.h"
#include "cohort/runtime/segment/call_compare.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/tape/memory_hash.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"

namespace cohort::trainer {
namespace {

constexpr const char* kWhat = "comparing the replicas' parameters";

// All NaNs count as one: a reduction may give the ranks NaNs of different signs and payloads.
int64_t HashOf(const at::Tensor& tensor) {
  at::Tensor here = tensor.detach().to(at::kCPU).contiguous();
  if (here.is_floating_point() && here.element_size() > 1) {
    here = here.masked_fill(here.isnan(), std::numeric_limits<double>::quiet_NaN());
  }
  return here.nbytes() == 0 ? 0 : static_cast<int64_t>(runtime::HashMemory(here.data_ptr(), here.nbytes()));
}

// `own` of each rank, one rank after another. The ledger does not count it: the job does not train by it.
std::vector<int64_t> Gather(comm::Communicator& group, std::span<const int64_t> own) {
  const auto count = static_cast<int64_t>(own.size());
  std::vector<int64_t> all(own.size() * static_cast<size_t>(group.size()));
  ThrowUnlessAllCame(group
                         .AllGather(comm::ConstBuffer(own.data(), count),
                                    comm::Buffer(all.data(), count * group.size()), {.timeout = default_timeout()})
                         .Wait(),
                     kWhat);
  return all;
}

// The world ranks that have the same value of a tensor, the value of more than half first.
struct Copies {
  std::vector<runtime::ResultVariant> variants;
  bool majority = false;
};

// `hashes`: those of rank 0, of rank 1, and so on.
Copies CopiesOf(size_t tensor, size_t tensors, const std::vector<int64_t>& hashes, const std::vector<int>& members) {
  std::vector<std::pair<int, int64_t>> copies;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    copies.emplace_back(members[rank], hashes[rank * tensors + tensor]);
  }
  std::sort(copies.begin(), copies.end());
  Copies found;
  std::vector<int64_t> values;
  for (const auto& [rank, hash] : copies) {
    const auto known = std::find(values.begin(), values.end(), hash) - values.begin();
    if (known == static_cast<ptrdiff_t>(values.size())) values.push_back(hash);
    runtime::AddResult(static_cast<uint32_t>(known) + 1, rank, &found.variants);
  }
  found.majority = runtime::PutMajorityFirst(&found.variants);
  return found;
}

std::string Describe(const std::string& name, const Copies& copies) {
  const std::vector<runtime::ResultVariant>& variants = copies.variants;
  std::vector<int> odd;
  for (size_t i = 1; i < variants.size(); ++i) {
    odd.insert(odd.end(), variants[i].ranks.begin(), variants[i].ranks.end());
  }
  std::sort(odd.begin(), odd.end());
  if (copies.majority) {
    return runtime::DescribeRanks(odd) + (odd.size() == 1 ? " has" : " have") + " another value of " + name + " than " +
           runtime::DescribeRanks(variants[0].ranks);
  }
  return runtime::DescribeRanks(variants[0].ranks) + " and " + runtime::DescribeRanks(odd) +
         " have different values of " + name + ", and none is that of most ranks, so nobody can tell which is right";
}

}  // namespace

void ReplicaCheck::Compare(comm::Communicator& group, const std::vector<NamedTensor>& tensors) const {
  if (group.size() == 1 || tensors.empty()) return;
  std::vector<int64_t> own;
  uint64_t together = 0;
  for (const NamedTensor& each : tensors) {
    own.push_back(HashOf(each.tensor));
    together = runtime::ChainSignature(together, static_cast<uint64_t>(own.back()));
  }
  const std::array<int64_t, 1> mine = {static_cast<int64_t>(together)};
  const std::vector<int64_t> all = Gather(group, mine);
  if (std::count(all.begin(), all.end(), all.front()) == group.size()) return;

  const std::vector<int64_t> hashes = Gather(group, own);
  std::string first;
  size_t differ = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Copies copies = CopiesOf(i, tensors.size(), hashes, group.members());
    if (copies.variants.size() > 1 && ++differ == 1) first = Describe(tensors[i].name, copies);
  }
  throw DistributedError(
      absl::StatusCode::kDataLoss,
      "DistributedDataParallel: the replicas differ at step " + std::to_string(step_) + ": " + first + " (" +
          runtime::GroupName(group.id()) + "; " + std::to_string(differ) + " of " + std::to_string(tensors.size()) +
          " tensors differ); go on from a checkpoint of an earlier step, and test the memory of the machine");
}

}  // namespace cohort::trainer
