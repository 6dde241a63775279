// The passes of one stage: what each micro-batch under way keeps between its forward and its backward pass.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/autograd/split_backward.h"
#include "cohort/trainer/parallel/pipeline/pipeline_stage.h"

namespace cohort::trainer {

class StagePasses {
 public:
  // `stage` must outlive this.
  explicit StagePasses(const PipelineStage& stage) : stage_(stage) {}

  // `input` becomes a leaf if it comes from another stage. `finish` makes the stage's result of its output: the loss on
  // the last stage. Returns the result without its graph; its memory is free once nobody has it, unless the graph saved
  // it.
  at::Tensor Forward(int micro_batch, const at::Tensor& input, bool from_stage,
                     const std::function<at::Tensor(const at::Tensor&)>& finish = {});
  // The whole backward pass. Returns the gradient of the input, undefined if that is none of a stage. An undefined
  // `gradient` stands for one of 1.
  at::Tensor Backward(int micro_batch, const at::Tensor& gradient);
  // Its parts. A stage whose input needs no gradient does all of it in the second.
  at::Tensor InputGradient(int micro_batch, const at::Tensor& gradient);
  void WeightGradient(int micro_batch);
  // Forgets all micro-batches.
  void Clear() { under_way_.clear(); }
  size_t under_way() const { return under_way_.size(); }

 private:
  struct UnderWay {
    at::Tensor input;              // a leaf; undefined on the first stage
    torch::autograd::Edge output;  // invalid if the output depends on nothing that needs a gradient
    at::TensorOptions options;     // of the output
    std::vector<int64_t> sizes;    // likewise
    at::Tensor gradient;           // that W begins with, if I had nothing to do
    SplitBackward split;
    bool has_split = false;
  };
  UnderWay& Of(int micro_batch);
  at::Tensor OutputGradient(const UnderWay& pass, const at::Tensor& gradient) const;
  static at::Tensor GradientOrZero(const UnderWay& pass, at::Tensor gradient);

  const PipelineStage& stage_;
  std::map<int, UnderWay> under_way_;  // by micro-batch
};

}  // namespace cohort::trainer
