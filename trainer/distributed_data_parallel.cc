#include "trainer/distributed_data_parallel.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "torch/torch.h"
#include "trainer/error.h"
#include "trainer/tensor_buffer.h"

namespace cohort::trainer {
namespace {

// Parameters and buffers travel in flat pieces of this size at construction (PyTorch: 250 MiB).
constexpr int64_t kBroadcastBytes = int64_t{250} << 20;

// Sends rank 0's values of tensors that share type and device, packed into one buffer.
void BroadcastPacked(comm::Communicator& group, const std::vector<at::Tensor>& tensors, const std::string& what) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.detach().reshape({-1}));
  at::Tensor packed = at::cat(flat);
  // No collective knows these types, but their bytes travel as well: masks are often bool.
  const bool as_bytes = packed.is_complex() || packed.scalar_type() == at::kBool;
  const at::Tensor carried = as_bytes ? packed.view(at::kByte) : packed;
  ThrowUnlessOk(group.Broadcast(AsBuffer(carried), 0).Wait(), what);
  if (group.rank() == 0) return;
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.detach().copy_(packed.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

std::string Describe(const std::string& name, const at::Tensor& tensor) {
  std::ostringstream text;
  text << name << ": " << tensor.scalar_type() << " " << tensor.sizes();
  return text.str();
}

std::vector<int> Everyone(const comm::Communicator& group) {
  std::vector<int> ranks(group.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

DataParallelState::DataParallelState(torch::nn::Module& module, comm::Communicator& group,
                                     DistributedDataParallelOptions options)
    : group_(group), options_(std::move(options)), module_(module) {
  CheckSameParameters();
  std::vector<at::Tensor> state = module_.parameters();
  const std::vector<at::Tensor> buffers = module_.buffers();
  state.insert(state.end(), buffers.begin(), buffers.end());
  BroadcastTensors(state, "broadcasting rank 0's parameters and buffers");

  std::map<const void*, int> device_of;  // by tensor implementation
  int devices = 1;
  for (const ModulePart& part : options_.parts) {
    TORCH_CHECK(part.module != nullptr, "DistributedDataParallel: a part names no module");
    TORCH_CHECK(part.device.index >= 0, "DistributedDataParallel: a part has device index ", part.device.index);
    devices = std::max(devices, part.device.index + 1);
    for (const at::Tensor& parameter : part.module->parameters()) {
      device_of[parameter.unsafeGetTensorImpl()] = part.device.index;
    }
  }
  std::vector<comm::Communicator*> groups;
  for (int device = 0; device < devices; ++device) {
    auto subgroup = group_.Subgroup(Everyone(group_));
    ThrowUnlessOk(subgroup.status(), "making the communicator of device group " + std::to_string(device));
    device_groups_.push_back(*std::move(subgroup));
    groups.push_back(device_groups_.back().get());
  }
  std::vector<ReducedParameter> reduced;
  std::set<const void*> seen;  // a parameter that modules share is listed once for each
  for (const auto& item : module_.named_parameters()) {
    if (!item.value().requires_grad() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    const auto found = device_of.find(item.value().unsafeGetTensorImpl());
    reduced.push_back({item.key(), item.value(), found == device_of.end() ? 0 : found->second});
  }
  reducer_ = std::make_unique<Reducer>(std::move(reduced), std::move(groups), options_.buckets);
}

// Rank 0's list of names, types and shapes goes to everyone; all ranks then learn whether anyone differs, so that all
// of them throw and none is left waiting.
void DataParallelState::CheckSameParameters() {
  std::string mine;
  for (const auto& item : module_.named_parameters()) {
    mine += Describe(item.key(), item.value()) + (item.value().requires_grad() ? "\n" : " (frozen)\n");
  }
  for (const auto& item : module_.named_buffers()) mine += Describe(item.key(), item.value()) + " (buffer)\n";
  int64_t length = static_cast<int64_t>(mine.size());
  ThrowUnlessOk(group_.Broadcast(comm::Buffer(&length, 1), 0).Wait(), "comparing the modules of the ranks");
  std::string reference = mine;
  reference.resize(length);
  ThrowUnlessOk(group_.Broadcast(comm::Buffer(reinterpret_cast<uint8_t*>(reference.data()), length), 0).Wait(),
                "comparing the modules of the ranks");
  std::vector<int32_t> equal(group_.size());
  const int32_t same = reference == mine ? 1 : 0;
  ThrowUnlessOk(group_.AllGather(comm::ConstBuffer(&same, 1), comm::Buffer(equal.data(), group_.size())).Wait(),
                "comparing the modules of the ranks");
  const auto differs = std::find(equal.begin(), equal.end(), 0);
  if (differs == equal.end()) return;
  std::string detail;
  if (same == 0) {
    std::istringstream ours(mine), theirs(reference);
    std::string our_line, their_line;
    while (std::getline(ours, our_line) && std::getline(theirs, their_line) && our_line == their_line) {
    }
    detail = "; here \"" + our_line + "\", on rank 0 \"" + their_line + "\"";
  }
  throw DistributedError(absl::StatusCode::kFailedPrecondition, "DistributedDataParallel: the module of rank " +
                                                                    std::to_string(differs - equal.begin()) +
                                                                    " has other parameters than rank 0's" + detail);
}

void DataParallelState::BroadcastTensors(const std::vector<at::Tensor>& tensors, const std::string& what) {
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
      if (!piece.empty() && bytes + static_cast<int64_t>(tensor.nbytes()) > kBroadcastBytes) {
        BroadcastPacked(group_, piece, what);
        piece.clear();
        bytes = 0;
      }
      piece.push_back(tensor);
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
    BroadcastPacked(group_, piece, what);
  }
}

void DataParallelState::BeforeForward(bool training) {
  reducer_->PrepareForward();
  if (sync_ && training && options_.broadcast_buffers) {
    BroadcastTensors(module_.buffers(), "broadcasting rank 0's buffers");
  }
}

void DataParallelState::AfterForward() {
  if (sync_ && at::GradMode::is_enabled()) reducer_->PrepareBackward();
}

}  // namespace cohort::trainer
