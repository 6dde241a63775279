#include "cohort/trainer/transfer/broadcast.h"

#include <map>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr int64_t kPieceBytes = int64_t{250} << 20;

// Tensors that share type and device.
void BroadcastPacked(comm::Communicator& group, const std::vector<at::Tensor>& tensors, int root,
                     const std::string& what) {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = tensors.front().scalar_type();
  const bool as_bytes = !CanCarry(type);
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) {
    flat.push_back(tensor.detach().reshape({-1}));
    if (as_bytes) flat.back() = flat.back().contiguous().view(at::kByte);
  }
  at::Tensor packed = at::cat(flat);
  ThrowUnlessOk(Broadcast(group, AsBuffer(packed), root).Wait(), what);
  if (group.rank() == root) return;
  if (as_bytes) packed = packed.view(type);
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.detach().copy_(packed.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

void BroadcastTensors(comm::Communicator& group, const std::vector<at::Tensor>& tensors, int root,
                      const std::string& what) {
  // Equal on all ranks: the grouping depends on types, devices and sizes only.
  std::map<std::pair<int, int>, std::vector<at::Tensor>> kinds;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const int device = tensor.is_cuda() ? tensor.get_device() : -1;
    kinds[{static_cast<int>(tensor.scalar_type()), device}].push_back(tensor);
  }
  for (const auto& [kind, members] : kinds) {
    std::vector<at::Tensor> piece;
    int64_t bytes = 0;
    for (const at::Tensor& tensor : members) {
      if (!piece.empty() && bytes + static_cast<int64_t>(tensor.nbytes()) > kPieceBytes) {
        BroadcastPacked(group, piece, root, what);
        piece.clear();
        bytes = 0;
      }
      piece.push_back(tensor);
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
    BroadcastPacked(group, piece, root, what);
  }
}

}  // namespace cohort::trainer
