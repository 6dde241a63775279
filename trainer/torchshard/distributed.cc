#include "cohort/trainer/torchshard/distributed.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/torchshard/parallel_dim.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/torch.h"

namespace cohort::trainer::torchshard {
namespace distributed {
namespace {

struct ProcessGroup {
  int world_size;
  std::unique_ptr<comm::Communicator> group, replicas;
  TensorAxis axis;
};

std::unique_ptr<ProcessGroup>& TheGroup() {
  static auto* group = new std::unique_ptr<ProcessGroup>;  // destroy_process_group ends it, not the end of main()
  return *group;
}

// Groups that destroy_process_group has ended. Placements, adapters and graphs may still refer to their communicators.
std::vector<std::unique_ptr<ProcessGroup>>& Ended() {
  static auto* ended = new std::vector<std::unique_ptr<ProcessGroup>>;
  return *ended;
}

ProcessGroup& Required() {
  TORCH_CHECK(TheGroup() != nullptr, "torchshard: there is no process group; call distributed::init_process_group");
  return *TheGroup();
}

std::unique_ptr<comm::Communicator> SubgroupOf(comm::Communicator& world, const std::vector<int>& ranks) {
  auto made = world.Subgroup(ranks);
  ThrowUnlessOk(made.status(), "torchshard::distributed::init_process_group");
  return *std::move(made);
}

// Whether `dim` counts the batch. -1 counts features, also of a tensor with one dimension.
bool IsBatch(const at::Tensor& x, int64_t dim) { return dim == 0 || (dim < -1 && dim == -x.dim()); }

// The identity, whose backward divides the gradient.
class DividedGradient : public torch::autograd::Function<DividedGradient> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, int64_t divisor) {
    ctx->saved_data["divisor"] = divisor;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    return {gradients.front() / ctx->saved_data["divisor"].toInt(), at::Tensor()};
  }
};

}  // namespace

void init_process_group(comm::Communicator& world, int group_size) {
  TORCH_CHECK(TheGroup() == nullptr, "torchshard: there is a process group; destroy_process_group ends it");
  if (group_size == -1) group_size = world.size();
  TORCH_CHECK(group_size >= 1 && world.size() % group_size == 0, "torchshard: groups of ", group_size,
              " ranks do not divide a world of ", world.size());
  std::vector<int> group, replicas;
  const int first = world.rank() / group_size * group_size;
  for (int i = 0; i < group_size; ++i) group.push_back(first + i);
  for (int rank = world.rank() % group_size; rank < world.size(); rank += group_size) replicas.push_back(rank);
  auto made = SubgroupOf(world, group);
  const TensorAxis axis(*made);
  TheGroup() =
      std::make_unique<ProcessGroup>(ProcessGroup{world.size(), std::move(made), SubgroupOf(world, replicas), axis});
}

bool is_initialized() { return TheGroup() != nullptr; }
void destroy_process_group() {
  if (TheGroup() != nullptr) Ended().push_back(std::move(TheGroup()));
}
bool has_ended(const comm::Communicator* group) {
  return std::any_of(Ended().begin(), Ended().end(), [group](const auto& each) { return each->group.get() == group; });
}
comm::Communicator& get_group() { return *Required().group; }
comm::Communicator& get_replicas() { return *Required().replicas; }
int get_rank() { return get_group().rank(); }
int get_group_size() { return get_group().size(); }
int get_world_size() { return Required().world_size; }
const TensorAxis& get_axis() { return Required().axis; }

at::Tensor scatter(const at::Tensor& x, int64_t dim, std::source_location site) {
  const bool batch = IsBatch(x, dim) && get_group_size() > 1;
  const at::Tensor y =
      scatter_to_region(batch ? DividedGradient::apply(x, get_group_size()) : x, get_group(), dim, site);
  if (!IsBatch(x, dim) && (dim == -1 || dim == x.dim() - 1)) register_parallel_dim(y, -1);
  return y;
}

at::Tensor gather(const at::Tensor& x, int64_t dim, int64_t whole, std::source_location site) {
  const at::Tensor y = IsBatch(x, dim) ? gather_from_sequence_region(x, get_group(), 0, whole, site)
                                       : gather_from_region(x, get_group(), dim, whole, site);
  if (get_group_size() > 1) register_parallel_dim(y, std::nullopt);
  return y;
}

at::Tensor reduce(const at::Tensor& x, std::source_location site) { return reduce_from_region(x, get_group(), site); }
at::Tensor copy(const at::Tensor& x, std::source_location site) { return copy_to_region(x, get_group(), site); }

}  // namespace distributed

at::Tensor slice(const at::Tensor& x, int64_t dim) {
  if (dim < 0) dim += x.dim();
  const std::vector<int64_t> sizes = ChunkSizes(x.size(dim), distributed::get_group_size());
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + distributed::get_rank(), int64_t{0});
  return x.detach().narrow(dim, begin, sizes[distributed::get_rank()]).clone(at::MemoryFormat::Contiguous);
}

}  // namespace cohort::trainer::torchshard
