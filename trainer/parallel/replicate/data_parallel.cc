#include "cohort/trainer/parallel/replicate/data_parallel.h"

#include <exception>
#include <string>
#include <thread>

#include "c10/core/DeviceGuard.h"
#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/autograd/random_place.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// A node of the graph between the replicas' parameters and the module's: adds the gradients in the replicas' order.
struct SumGradients : Node {
  explicit SumGradients(c10::Device device) : device(device) {}
  variable_list apply(variable_list&& gradients) override {
    at::Tensor sum;
    for (const at::Tensor& gradient : gradients) {
      if (!gradient.defined()) continue;  // of a replica that did not use it
      const at::Tensor here = gradient.to(device);
      sum = sum.defined() ? sum + here : here;
    }
    return {sum};
  }
  c10::Device device;
};

at::Tensor CopyOn(c10::Device device, const at::Tensor& tensor) {
  return tensor.detach().to(tensor.options().device(device), /*non_blocking=*/true, /*copy=*/true);
}

void CheckAlike(const std::vector<at::Tensor>& of_module, const std::vector<at::Tensor>& of_replica) {
  bool alike = of_module.size() == of_replica.size();
  for (size_t i = 0; alike && i < of_module.size(); ++i) alike = of_module[i].sizes() == of_replica[i].sizes();
  TORCH_CHECK(alike,
              "DataParallel: a replica has other parameters or buffers than the module; make_replica must make modules "
              "like the one that is wrapped");
}

}  // namespace

DataParallelBase::DataParallelBase(DataParallelOptions options) : dim_(options.dim) {
  if (options.devices.has_value()) {
    devices_ = *std::move(options.devices);
  } else {
    for (size_t i = 0; i < static_cast<size_t>(torch::cuda::device_count()); ++i) {
      devices_.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(i));
    }
  }
  for (c10::Device& device : devices_) {
    if (device.is_cuda() && !device.has_index()) device.set_index(0);
  }
  if (!devices_.empty()) output_device_ = options.output_device.value_or(devices_.front());
}

std::shared_ptr<torch::nn::Module> DataParallelBase::CloneOf(const torch::nn::Module& module) {
  try {
    return module.clone();
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "DataParallel: ", module.name(), " can't be replicated (", error.what_without_backtrace(),
                "); derive it from torch::nn::Cloneable or pass make_replica");
  }
}

void DataParallelBase::CheckPlaced(const torch::nn::Module& module) const {
  const auto check = [this](const auto& items, const char* what) {
    for (const auto& item : items) {
      TORCH_CHECK(item.value().device() == devices_.front(), "DataParallel: ", what, " ", item.key(), " is on ",
                  item.value().device(), ", and all of the module's must be on its first device, ", devices_.front(),
                  "; move it there: module->to(...)");
    }
  };
  check(module.named_parameters(), "parameter");
  check(module.named_buffers(), "buffer");
}

void DataParallelBase::Replicate(const torch::nn::Module& module, const std::vector<torch::nn::Module*>& replicas) {
  const std::vector<at::Tensor> parameters = module.parameters(), buffers = module.buffers();
  const bool records = at::GradMode::is_enabled();
  versions_.resize(devices_.size(), std::vector<int64_t>(parameters.size(), -1));
  std::vector<std::shared_ptr<Node>> sums(parameters.size());
  for (size_t i = 0; i < parameters.size() && records; ++i) {
    if (!parameters[i].requires_grad()) continue;
    sums[i] = std::make_shared<SumGradients>(parameters[i].device());
    sums[i]->set_next_edges(torch::autograd::collect_next_edges(parameters[i]));
  }
  for (size_t r = 0; r < replicas.size(); ++r) {
    const c10::Device device = devices_[r + 1];
    std::vector<at::Tensor> own = replicas[r]->parameters(), own_buffers = replicas[r]->buffers();
    CheckAlike(parameters, own);
    CheckAlike(buffers, own_buffers);
    for (size_t i = 0; i < own.size(); ++i) {
      own[i].set_data(CopyOn(device, parameters[i]));
      // Graphs of earlier forward passes hold on to the replica's tensor: they are valid while its values are the same.
      const int64_t before = std::exchange(versions_[r][i], parameters[i]._version());
      if (before != versions_[r][i]) own[i].unsafeGetTensorImpl()->bump_version();
      if (sums[i] != nullptr) {
        torch::autograd::set_history(own[i], sums[i]);
      } else if (records) {
        torch::autograd::impl::set_gradient_edge(own[i], {});  // frozen since
      }
    }
    for (size_t i = 0; i < own_buffers.size(); ++i) own_buffers[i].set_data(CopyOn(device, buffers[i]));
    const auto from = module.modules(), to = replicas[r]->modules();
    for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) to[i]->train(from[i]->is_training());
  }
}

void DataParallelBase::RunEach(const std::vector<at::Tensor>& inputs,
                               const std::function<void(size_t)>& forward) const {
  const size_t count = inputs.size();
  std::vector<RandomPlace> places;
  RandomPlace place = random_place();
  for (const at::Tensor& input : inputs) {
    places.push_back(place);
    if (input.defined() && input.dim() > 0) place.first_row += input.size(dim_) * place.row_stride;
  }
  const bool records = at::GradMode::is_enabled();
  const AutocastState autocast = CurrentAutocast();
  std::vector<std::exception_ptr> failures(count);
  const auto run = [&](size_t i) {
    try {
      const at::AutoGradMode grad_mode(records);
      const AutocastStateGuard autocast_guard(autocast);
      const RandomPlaceGuard place_guard(places[i]);
      const c10::DeviceGuard device_guard(devices_[i]);
      forward(i);
    } catch (c10::Error& error) {
      error.add_context("DataParallel: in replica " + std::to_string(i) + " on device " + devices_[i].str());
      failures[i] = std::current_exception();
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  std::vector<std::jthread> threads;  // which join those that there are where the system gives no more
  for (size_t i = 1; i < count; ++i) threads.emplace_back(run, i);
  run(0);
  threads.clear();
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

std::vector<at::Tensor> DataParallelBase::Scatter(const at::Tensor& input) const {
  if (!input.defined()) return std::vector<at::Tensor>(devices_.size());
  std::vector<at::Tensor> parts = input.chunk(static_cast<int64_t>(devices_.size()), dim_);
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].to(devices_[i], /*non_blocking=*/true);
  return parts;
}

at::Tensor DataParallelBase::Gather(const std::vector<at::Tensor>& outputs) const {
  if (!outputs.front().defined()) return {};
  const bool scalars = outputs.front().dim() == 0;
  std::vector<at::Tensor> here;
  for (const at::Tensor& output : outputs) {
    here.push_back((scalars ? output.unsqueeze(0) : output).to(output_device_, /*non_blocking=*/true));
  }
  return at::cat(here, scalars ? 0 : dim_);
}

}  // namespace cohort::trainer
