#include "cohort/trainer/torchshard/parallel_dim.h"

#include <map>
#include <utility>

#include "c10/core/StorageImpl.h"
#include "c10/util/intrusive_ptr.h"
#include "cohort/runtime/base/mutex.h"
#include "torch/torch.h"

namespace cohort::trainer::torchshard {
namespace {

// The tag of a tensor that begins at an offset of a storage, and how its last dimension lies there.
struct Tag {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being used again, not the memory
  int64_t last_size, last_stride;
  int64_t dim;
};
using Place = std::pair<const c10::StorageImpl*, int64_t>;

runtime::Mutex mutex;
size_t next_sweep COHORT_GUARDED_BY(mutex) = 64;
std::map<Place, Tag>& Tags() COHORT_REQUIRES(mutex) {
  static auto* tags = new std::map<Place, Tag>;  // for ever: threads may outlive main()
  return *tags;
}

int64_t LastSize(const at::Tensor& x) { return x.dim() == 0 ? 1 : x.size(-1); }
int64_t LastStride(const at::Tensor& x) { return x.dim() == 0 ? 1 : x.stride(-1); }
Place PlaceOf(const at::Tensor& x) { return {x.storage().unsafeGetStorageImpl(), x.storage_offset()}; }

// Drops the tags of memory that is gone, whenever the table has doubled.
void Sweep() COHORT_REQUIRES(mutex) {
  if (Tags().size() < next_sweep) return;
  std::erase_if(Tags(), [](const auto& each) { return each.second.storage.expired(); });
  next_sweep = std::max<size_t>(64, 2 * Tags().size());
}

}  // namespace

void register_parallel_dim(const at::Tensor& x, ParallelDim dim) {
  TORCH_CHECK(x.defined(), "register_parallel_dim: the tensor is undefined");
  TORCH_CHECK(!dim.has_value() || (*dim >= -1 && *dim <= 1),
              "register_parallel_dim: dim must be none, -1, 0 or 1, got ", *dim);
  runtime::MutexLock lock(mutex);
  if (!dim.has_value()) {
    Tags().erase(PlaceOf(x));
    return;
  }
  Sweep();
  Tags().insert_or_assign(PlaceOf(x),
                          Tag{.storage = c10::weak_intrusive_ptr<c10::StorageImpl>(x.storage().getWeakStorageImpl()),
                              .last_size = LastSize(x),
                              .last_stride = LastStride(x),
                              .dim = *dim == 1 ? -1 : *dim});
}

ParallelDim get_parallel_dim(const at::Tensor& x) {
  if (!x.defined() || !x.has_storage()) return std::nullopt;
  runtime::MutexLock lock(mutex);
  const auto found = Tags().find(PlaceOf(x));
  if (found == Tags().end() || found->second.storage.expired()) return std::nullopt;
  const Tag& tag = found->second;
  if (tag.last_size != LastSize(x) || tag.last_stride != LastStride(x)) return std::nullopt;
  return tag.dim;
}

}  // namespace cohort::trainer::torchshard
