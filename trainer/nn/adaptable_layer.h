// AdaptableLayer: a layer that a low-rank adapter (adapter/lora.h) may add to. The adapter has two matrices and a
// scale. The layer knows how its own product is made over ranks, and makes the adapter's in the same way.
//
//   linear      y = x W^T + low_rank(x, A, B)    W is [out, in],      A is [r, in],    B is [out, r]
//   embedding   y = W[c]  + low_rank(c, A, B)    W is [rows, width],  A is [r, rows],  B is [width, r]
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/mesh/axis.h"
#include "cohort/trainer/placement/placement.h"

namespace cohort::trainer::nn {

enum class LayerKind { kLinear, kEmbedding };

// The dimension along which the ranks of an axis split a layer.
enum class LayerSplit {
  kNone,
  kOutput,  // column parallel: each rank makes a part of the output's features
  kInput,   // row parallel: each rank has a part of the input's features, or of an embedding's rows
};

// A layer as an adapter sees it.
struct LayerForm {
  LayerKind kind = LayerKind::kLinear;
  // Sizes in the unsplit model: features in and out; for an embedding its rows and its width.
  int64_t in_features = 0;
  int64_t out_features = 0;
  // For a split layer: the axis, and how the weight's dimension is cut along it (the dimension itself follows from
  // `kind` and `split`).
  LayerSplit split = LayerSplit::kNone;
  Axis axis = {};
  Cut cut = {};
};

class AdaptableLayer;

// The computation of a layer that is cut over ranks, in place of the layer's own. It has the layer's parameters.
class CutLayer {
 public:
  virtual ~CutLayer() = default;
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  // The layer that it computes as, which describes itself to adapters.
  virtual AdaptableLayer& layer() = 0;
  // The same computation for a clone of the layer. It has the clone's parameters, which are this rank's parts too, and
  // enters them in the table of placements. `bias` may be undefined.
  virtual std::shared_ptr<CutLayer> ForClone(const at::Tensor& weight, const at::Tensor& bias) const = 0;
};

// The computation of an adapter.
class LayerAdapter {
 public:
  virtual ~LayerAdapter() = default;
  // Returns what is added to the output of `layer` for this input: low_rank of its own matrices, scaled.
  virtual at::Tensor forward(AdaptableLayer& layer, const at::Tensor& input) = 0;
};

class AdaptableLayer {
 public:
  virtual ~AdaptableLayer() = default;
  // The layer's sizes and how it is split. Constant.
  virtual LayerForm adaptable_form() const = 0;
  // Returns the weight that the layer multiplies by, this rank's part of it.
  virtual at::Tensor adaptable_weight() const = 0;
  // Returns the product of two matrices in place of the weight: x A^T B^T, or A^T[c] B^T, in the sizes of the layer's
  // output. `a` and `b` are this rank's parts: one of them is cut as the weight is, the other is whole, equal on all
  // ranks, and gets the gradient of all ranks. Collective over the axis of a split layer, as is its backward pass; it
  // moves r numbers where the layer's own product moves in_features or out_features.
  virtual at::Tensor low_rank(const at::Tensor& input, const at::Tensor& a, const at::Tensor& b) = 0;

  // Returns how an input of the layer lies in the whole, for layers whose masks of dropout do not depend on the mesh
  // (parallel/tensor/parallel_dropout.h). Nothing for other layers, whose masks come from torch's generator: those of
  // torch, and whole ones where the thread has no random_place().
  virtual std::optional<ActivationPart> input_part(const at::Tensor& /*input*/) const { return std::nullopt; }

  // Sets the adapter, or removes it if `adapter` is null. Not during a forward pass.
  void set_adapter(std::shared_ptr<LayerAdapter> adapter) { adapter_ = std::move(adapter); }
  const std::shared_ptr<LayerAdapter>& adapter() const { return adapter_; }

 protected:
  // Returns the output with the adapter's part. Layers call it at the end of forward, before they gather outputs.
  at::Tensor WithAdapter(const at::Tensor& output, const at::Tensor& input);

 private:
  std::shared_ptr<LayerAdapter> adapter_;
};

}  // namespace cohort::trainer::nn
