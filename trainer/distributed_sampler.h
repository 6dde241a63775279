// DistributedSampler: which examples of a dataset each rank sees, with exactly the order of Python's
// torch.utils.data.DistributedSampler (torch/utils/data/distributed.py), so that a run can move between languages.
// libtorch's own DistributedRandomSampler is not that: other generator, contiguous blocks, no seed.
#pragma once

#include <cstdint>
#include <vector>

namespace cohort::trainer {

struct DistributedSamplerOptions {
  bool shuffle = true;
  uint64_t seed = 0;       // the same on all ranks
  bool drop_last = false;  // true: drop the tail so that all ranks get equally many; false: repeat the head
};

class DistributedSampler {
 public:
  // For `rank` of `num_replicas` ranks over `dataset_size` examples. Throws c10::Error on a rank out of range, on
  // num_replicas < 1 and on an empty dataset.
  DistributedSampler(int64_t dataset_size, int num_replicas, int rank, DistributedSamplerOptions options = {});

  // Chooses the epoch's permutation (seed + epoch). Without it every epoch has the same order.
  void set_epoch(uint64_t epoch) { epoch_ = epoch; }
  // Examples per rank and epoch.
  int64_t num_samples() const { return num_samples_; }
  // This rank's example numbers for the current epoch, in order: every num_replicas-th of the padded permutation,
  // beginning with the rank-th.
  std::vector<int64_t> indices() const;

 private:
  int64_t dataset_size_;
  int num_replicas_;
  int rank_;
  DistributedSamplerOptions options_;
  int64_t num_samples_;
  uint64_t epoch_ = 0;
};

}  // namespace cohort::trainer
