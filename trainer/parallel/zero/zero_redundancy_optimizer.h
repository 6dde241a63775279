// ZeroRedundancyOptimizer splits an optimizer's state among the ranks (ZeRO stage 1), after torch.distributed's class.
//
//   DistributedDataParallel ddp(model, *world);
//   ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(model->parameters(), *world,
//   torch::optim::AdamOptions(1e-3));
//   ...
//   loss.backward();    // averaged by ddp
//   optimizer.step();   // each rank steps the parameters that it owns, then all ranks get all of them
//
// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020). State
// of 12 bytes a parameter (mixed-precision Adam) becomes 12 / ranks. A step moves every parameter to every rank once,
// by one all-gather for each element type. Parameters that are no views of its buffer are gathered in pieces, so that
// no second copy of all parameters is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/parallel/zero/zero_partition.h"
#include "cohort/trainer/placement/partitioned_optimizer.h"
#include "cohort/trainer/transfer/join.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

struct ZeroRedundancyOptimizerOptions {
  ZeroPartition partition = ZeroPartition::kSortedBySize;
  // Parameters become views of one buffer in window memory for each element type; the all-gather writes there directly.
  // Otherwise they stay in place and are copied through two buffers of allgather_bucket_bytes for each element type and
  // device.
  bool parameters_as_bucket_view = false;
  int64_t allgather_bucket_bytes = int64_t{16} << 20;  // of all ranks together
};

// The part that does not depend on the optimizer's class. It is a torch optimizer of all parameters. The options of its
// groups (learning rates, ...) may be changed between steps as usual.
class ZeroRedundancyOptimizerBase : public PartitionedOptimizer, public Joinable {
 public:
  using LocalFactory =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)>;

  // Collective over `group`, which must outlive this. All ranks pass equal parameters. A parameter that modules share
  // counts once. Throws DistributedError and c10::Error.
  ZeroRedundancyOptimizerBase(std::vector<torch::optim::OptimizerParamGroup> groups,
                              std::unique_ptr<torch::optim::OptimizerOptions> defaults, const LocalFactory& factory,
                              comm::Communicator& group, ZeroRedundancyOptimizerOptions options);
  ~ZeroRedundancyOptimizerBase() override;

  // Steps this rank's parameters, then gathers all ranks' parameters on every rank. Collective; blocks. Returns the
  // closure's loss. Under Join, a rank without inputs takes the learning rates of the groups of the ranks that have
  // some (get_lr() of their options, if overridden). These must be equal. Its other options are its own.
  at::Tensor step(LossClosure closure = nullptr) override;
  // Both throw c10::Error: they would keep nothing. SaveTrainingState keeps the state of the ranks' optimizers.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // Scales gradients so that the norm over all parameters is at most max_norm. Returns the norm before. Each parameter
  // counts on its owner. All parameters are those of the whole model, also where tensor-parallel layers or stages have
  // parts of it. Collective over all ranks that share the model; blocks.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0);

  // The group rank that owns each parameter, in the order of the groups' parameters.
  const std::vector<int>& owners() const { return owners_; }
  // The owner of one parameter. Throws c10::Error for a parameter of another optimizer.
  int OwnerOf(const at::Tensor& parameter) const override;
  // Bytes that it keeps beside the parameters to gather them.
  int64_t buffer_bytes() const override;
  // The optimizer of this rank's parameters.
  torch::optim::Optimizer& local_optimizer() override { return *local_; }
  comm::Communicator& join_group() override { return group_; }
  void Shadow(int call, const JoinIteration& iteration) override;
  void AfterJoin(const JoinIteration& /*last*/) override {}
  bool begins_iterations() const override { return false; }
  std::string NameOf(int call) const override;
  void AbortGroups(const std::string& why) override { own_group_->Abort(why); }

 private:
  struct Flat;  // the parameters of one element type, owner by owner
  enum class Way { kIntoBuffer, kOutOfBuffer };
  void CheckSetup() const;

  void Partition();
  void MakeLocal(const LocalFactory& factory);
  void MakeFlats();
  void MakeViews(Flat& flat);
  void MakeBuckets(Flat& flat);
  std::vector<double> LearningRates() const;
  void GatherParameters();
  absl::Status GatherByBuckets(const Flat& flat);
  void CopyBucket(const Flat& flat, int64_t bucket, Way way);
  void CopyRange(const Flat& flat, int64_t begin, const at::Tensor& slice, Way way);

  comm::Communicator& group_;
  std::unique_ptr<comm::Communicator> own_group_;  // a group of the same ranks, for its own collectives
  ZeroRedundancyOptimizerOptions options_;
  std::vector<at::Tensor> all_;  // parameters, in order
  std::vector<int> owners_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::vector<std::unique_ptr<Flat>> flats_;
};

template <typename OptimizerClass>
class ZeroRedundancyOptimizer : public ZeroRedundancyOptimizerBase {
 public:
  template <typename Defaults>
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, comm::Communicator& group, const Defaults& defaults,
                          ZeroRedundancyOptimizerOptions options = {})
      : ZeroRedundancyOptimizer(
            std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(std::move(parameters))},
            group, defaults, options) {}
  template <typename Defaults>
  ZeroRedundancyOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, comm::Communicator& group,
                          const Defaults& defaults, ZeroRedundancyOptimizerOptions options = {})
      : ZeroRedundancyOptimizerBase(
            std::move(groups), std::make_unique<Defaults>(defaults),
            [&defaults](std::vector<torch::optim::OptimizerParamGroup> local) {
              return std::make_unique<OptimizerClass>(std::move(local), defaults);
            },
            group, options) {}
};

}  // namespace cohort::trainer
