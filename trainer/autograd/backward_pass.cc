#include "cohort/trainer/autograd/backward_pass.h"

#include <utility>

#include "torch/csrc/autograd/engine.h"

namespace cohort::trainer {

void BackwardPass::Begin(std::function<void()> at_end) {
  auto alive = std::make_shared<std::function<void()>>(std::move(at_end));
  alive_ = alive;
  torch::autograd::Engine::get_default_engine().queue_callback([alive = std::move(alive)] { (*alive)(); });
}

bool BackwardPass::goes_on_here() const {
  return goes_on() && torch::autograd::get_current_graph_task_exec_info() != nullptr;
}

}  // namespace cohort::trainer
