// DistributedSampler: which examples of a dataset each rank sees, with exactly the order of Python's
// torch.utils.data.DistributedSampler (torch/utils/data/distributed.py), so that a run can move between languages.
// libtorch's own DistributedRandomSampler is not that: other generator, contiguous blocks, no seed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
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

  // Chooses the epoch's permutation (seed + epoch). Without it every epoch has the same order. Another epoch than the
  // one before begins at its beginning.
  void set_epoch(uint64_t epoch);
  uint64_t epoch() const { return epoch_; }
  // Leaves out the first `examples` of the epoch's order, all ranks' together: those that were trained on before. With
  // batches of b examples a rank, step s begins at s * b * ranks, whatever the number of ranks. Throws c10::Error for a
  // negative number.
  void set_consumed(int64_t examples);
  int64_t consumed() const { return consumed_; }
  // Examples per rank in the rest of the epoch.
  int64_t num_samples() const { return num_samples_; }
  // This rank's example numbers for the rest of the epoch, in order: every num_replicas-th of the padded permutation,
  // beginning with the rank-th.
  std::vector<int64_t> indices() const;

  // For checkpoints: epoch, place in it, and what the order depends on.
  std::map<std::string, std::string> state_dict() const;
  // Goes on from there, on any number of ranks. Throws c10::Error when something is missing, or when the order was of
  // another dataset size, seed or shuffling.
  void load_state_dict(const std::map<std::string, std::string>& state);

 private:
  int64_t dataset_size_;
  int num_replicas_;
  int rank_;
  DistributedSamplerOptions options_;
  int64_t num_samples_;
  uint64_t epoch_ = 0;
  int64_t consumed_ = 0;
};

}  // namespace cohort::trainer
