// DistributedSampler: the examples of a dataset that each rank sees. The order is exactly that of Python's
// torch.utils.data.DistributedSampler (torch/utils/data/distributed.py), so that a run can move between languages.
// libtorch's own DistributedRandomSampler has another generator, contiguous blocks and no seed.
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
  // Samples for `rank` of `num_replicas` ranks over `dataset_size` examples. Throws c10::Error for a rank out of range,
  // for num_replicas < 1 and for an empty dataset.
  DistributedSampler(int64_t dataset_size, int num_replicas, int rank, DistributedSamplerOptions options = {});

  // Chooses the epoch's permutation (seed + epoch). Without it every epoch has the same order. A change of the epoch
  // starts at the beginning of its order.
  void set_epoch(uint64_t epoch);
  uint64_t epoch() const { return epoch_; }
  // Leaves out the first `examples` of the epoch's order, counted over all ranks: the ones already trained on. With
  // batches of b examples a rank, step s begins at s * b * ranks, whatever the number of ranks. Throws c10::Error for a
  // negative number.
  void set_consumed(int64_t examples);
  int64_t consumed() const { return consumed_; }
  // The number of examples per rank in the rest of the epoch.
  int64_t num_samples() const { return num_samples_; }
  // This rank's example numbers for the rest of the epoch, in order. They are every num_replicas-th of the padded
  // permutation, beginning with the rank-th.
  std::vector<int64_t> indices() const;

  // The values for checkpoints: the epoch, the place in it, and all that the order depends on.
  std::map<std::string, std::string> state_dict() const;
  // Continues from a checkpoint, on any number of ranks. Throws c10::Error when a value is missing, or when the order
  // had another dataset size, seed or shuffling.
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
