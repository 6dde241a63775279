// DataParallel computes a module on several devices of one process, after torch.nn.DataParallel.
//
//   DataParallel<Net> parallel(net);   // on all CUDA devices of the process; net is on the first
//   auto loss = torch::nll_loss(parallel.forward(images), labels);
//   loss.backward();                   // the gradients of net, as if it had computed the whole batch
//
//             ┌ scatter ─ images[0:8]  ─ net       on cuda:0 ─┐
//   images ───┤           images[8:16] ─ replica 1 on cuda:1  ├─ gather ─ outputs on cuda:0
//             └           images[16:20]─ replica 2 on cuda:2 ─┘
//   backward: the gradients of the replicas' parameters are added up, replica by replica, and go into net's
//
// As in PyTorch, tensors among the inputs are cut along `dim` as by chunk(), so that a small batch may use fewer
// devices. Other inputs go to all devices. Replicas get the module's parameters and buffers before every forward pass.
// Buffers keep what the module writes on the first device, and lose what it writes on the others. Results that are
// scalars become vectors with one element a device. Without devices it is the plain module. Gradients are summed, not
// averaged: the loss of the gathered outputs averages.
//
// Unlike PyTorch's, replicas are made once, not in every forward pass, and the first device computes with the module
// itself. DistributedDataParallel, with a process for each device, is faster. It may be wrapped around this class,
// whose module then spans the rank's devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "cohort/trainer/base/tensors_of.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

struct DataParallelOptions {
  // Devices to compute on; unset: all CUDA devices of the process. The CPU may be named repeatedly, for tests.
  std::optional<std::vector<c10::Device>> devices = std::nullopt;
  std::optional<c10::Device> output_device = std::nullopt;  // unset: the first of them
  int64_t dim = 0;  // of inputs and outputs, along which they are cut and joined
};

// The part of DataParallel that does not depend on the module's class.
class DataParallelBase : public torch::nn::Module {
 public:
  const std::vector<c10::Device>& devices() const { return devices_; }
  c10::Device output_device() const { return output_device_; }

 protected:
  explicit DataParallelBase(DataParallelOptions options);

  // A deep copy. Throws c10::Error for modules that have no clone().
  static std::shared_ptr<torch::nn::Module> CloneOf(const torch::nn::Module& module);
  // Throws c10::Error unless all parameters and buffers are on the first device.
  void CheckPlaced(const torch::nn::Module& module) const;
  // Gives the replicas on the other devices the module's values and modes, and sends the gradients of their parameters
  // to the module's.
  void Replicate(const torch::nn::Module& module, const std::vector<torch::nn::Module*>& replicas);
  // Calls forward(0), forward(1), ... for each of `inputs`, in a thread of its own with the caller's autograd and
  // autocast modes, and with its device as the current one. The thread's random_place() has the rows of the device, of
  // which inputs[i] is one of the tensors, or undefined. Blocks. Throws what the first of them threw, with the device's
  // name.
  void RunEach(const std::vector<at::Tensor>& inputs, const std::function<void(size_t)>& forward) const;

  // Cuts an input into one part for each device, or fewer if there are fewer chunks.
  std::vector<at::Tensor> Scatter(const at::Tensor& input) const;
  template <typename T>
  std::vector<std::vector<T>> Scatter(const std::vector<T>& inputs) const {
    std::vector<std::vector<T>> parts(devices_.size());
    for (const T& input : inputs) {
      const std::vector<T> pieces = Scatter(input);
      parts.resize(std::min(parts.size(), pieces.size()));
      for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(pieces[i]);
    }
    return parts;
  }
  template <typename T>
  std::vector<std::optional<T>> Scatter(const std::optional<T>& input) const {
    if (!input.has_value()) return std::vector<std::optional<T>>(devices_.size());
    const std::vector<T> pieces = Scatter(*input);
    return {pieces.begin(), pieces.end()};
  }
  template <typename T>
  std::vector<T> Scatter(const T& input) const {
    return std::vector<T>(devices_.size(), input);
  }

  // Joins the outputs of all devices: tensors, and vectors, tuples, pairs and optionals of them.
  at::Tensor Gather(const std::vector<at::Tensor>& outputs) const;
  template <typename T>
  std::vector<T> Gather(const std::vector<std::vector<T>>& outputs) const {
    std::vector<T> gathered;
    for (size_t i = 0; i < outputs.front().size(); ++i) {
      gathered.push_back(GatherEach(outputs, [i](const std::vector<T>& each) { return each.at(i); }));
    }
    return gathered;
  }
  template <typename... Ts>
  std::tuple<Ts...> Gather(const std::vector<std::tuple<Ts...>>& outputs) const {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::tuple<Ts...>(GatherEach(outputs, [](const auto& each) { return std::get<I>(each); })...);
    }(std::index_sequence_for<Ts...>());
  }
  template <typename A, typename B>
  std::pair<A, B> Gather(const std::vector<std::pair<A, B>>& outputs) const {
    return {GatherEach(outputs, [](const auto& each) { return each.first; }),
            GatherEach(outputs, [](const auto& each) { return each.second; })};
  }
  template <typename T>
  std::optional<T> Gather(const std::vector<std::optional<T>>& outputs) const {
    if (!outputs.front().has_value()) return std::nullopt;
    return GatherEach(outputs, [](const std::optional<T>& each) { return each.value(); });
  }

 private:
  template <typename Output, typename Member>
  auto GatherEach(const std::vector<Output>& outputs, Member member) const {
    std::vector<decltype(member(outputs.front()))> members;
    for (const Output& output : outputs) members.push_back(member(output));
    return Gather(members);
  }

  std::vector<c10::Device> devices_;
  c10::Device output_device_ = c10::Device(c10::kCPU);
  int64_t dim_;
  // By replica: the versions of the module's parameters when it was last given their values.
  std::vector<std::vector<int64_t>> versions_;
};

template <typename ModuleType>
class DataParallel : public DataParallelBase {
 public:
  // Makes another module like the wrapped one. Its values don't matter.
  using MakeReplica = std::function<std::shared_ptr<ModuleType>()>;

  // `module` is, and stays, on the first device. Replicas are its clones (torch::nn::Cloneable); `make_replica` makes
  // them for modules that have no clone(). Throws c10::Error.
  explicit DataParallel(std::shared_ptr<ModuleType> module, DataParallelOptions options = {},
                        const MakeReplica& make_replica = nullptr)
      : DataParallelBase(std::move(options)), module_(register_module("module", std::move(module))) {
    if (devices().size() == 1) module_->to(devices().front());
    for (size_t i = 1; i < devices().size(); ++i) {
      replicas_.push_back(make_replica != nullptr ? make_replica()
                                                  : std::dynamic_pointer_cast<ModuleType>(CloneOf(*module_)));
      TORCH_CHECK(replicas_.back() != nullptr, "DataParallel: a replica is null or of another class than the module");
      for (at::Tensor& parameter : replicas_.back()->parameters()) parameter.requires_grad_(false);
    }
  }

  // Calls the module's forward on all devices. Blocks until the host's part is done. Throws c10::Error, and what the
  // module throws.
  template <typename... Inputs>
  auto forward(const Inputs&... inputs) {
    using Output = decltype(module_->forward(inputs...));
    if (devices().empty()) return module_->forward(inputs...);
    CheckPlaced(*module_);
    const auto parts = std::make_tuple(Scatter(inputs)...);
    size_t count = sizeof...(inputs) == 0 ? 1 : devices().size();
    std::apply([&count](const auto&... each) { ((count = std::min(count, each.size())), ...); }, parts);
    const auto compute = [&](size_t i) {
      ModuleType& replica = i == 0 ? *module_ : *replicas_[i - 1];
      return std::apply([&](const auto&... each) { return replica.forward(each[i]...); }, parts);
    };
    if (devices().size() == 1) return compute(0);
    std::vector<torch::nn::Module*> used;
    for (size_t i = 1; i < count; ++i) used.push_back(replicas_[i - 1].get());
    Replicate(*module_, used);
    std::vector<std::optional<Output>> results(count);
    std::vector<at::Tensor> of_device(count);
    for (size_t i = 0; i < count; ++i) {
      const auto look = [&](const auto& each) {
        for (const at::Tensor& tensor : TensorsOf(each[i])) {
          if (!of_device[i].defined()) of_device[i] = tensor;
        }
      };
      std::apply([&](const auto&... each) { (look(each), ...); }, parts);
    }
    RunEach(of_device, [&](size_t i) { results[i].emplace(compute(i)); });
    std::vector<Output> outputs;
    for (auto& result : results) outputs.push_back(*std::move(result));
    return Gather(outputs);
  }

  const std::shared_ptr<ModuleType>& module() const { return module_; }

 private:
  std::shared_ptr<ModuleType> module_;
  std::vector<std::shared_ptr<ModuleType>> replicas_;  // of the other devices
};

}  // namespace cohort::trainer
