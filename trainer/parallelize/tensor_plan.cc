#include "cohort/trainer/parallelize/tensor_plan.h"

#include <memory>
#include <set>

#include "cohort/trainer/nn/embedding.h"
#include "cohort/trainer/nn/linear.h"
#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/parallel/tensor/row_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_embedding.h"
#include "cohort/trainer/placement/box_copy.h"
#include "cohort/trainer/placement/placement_table.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Style = std::variant<ColwiseParallel, RowwiseParallel>;

// A parallel layer that computes for another one, with that one's parameters.
template <typename Layer>
class CutAs : public nn::CutLayer {
 public:
  explicit CutAs(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}
  at::Tensor forward(const at::Tensor& input) override { return layer_->forward(input); }
  nn::AdaptableLayer& layer() override { return *layer_; }

 private:
  std::shared_ptr<Layer> layer_;
};

// A parallel layer with values of its own, which are of no use. It leaves torch's generator as it was.
template <typename Layer, typename Options>
std::shared_ptr<Layer> Made(const Options& options, const TensorAxis& axis) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  auto layer = std::make_shared<Layer>(options, axis);
  generator.set_state(before);
  return layer;
}

std::shared_ptr<ColumnParallelLinearImpl> Like(const torch::nn::LinearOptions& options, const ColwiseParallel& style,
                                               const TensorAxis& axis) {
  return Made<ColumnParallelLinearImpl>(ColumnParallelLinearOptions(options.in_features(), options.out_features())
                                            .bias(options.bias())
                                            .gather_output(style.gather_output())
                                            .blocks(style.blocks())
                                            .unit(style.unit()),
                                        axis);
}

std::shared_ptr<RowParallelLinearImpl> Like(const torch::nn::LinearOptions& options, const RowwiseParallel& style,
                                            const TensorAxis& axis) {
  return Made<RowParallelLinearImpl>(RowParallelLinearOptions(options.in_features(), options.out_features())
                                         .bias(options.bias())
                                         .input_is_parallel(style.input_is_parallel())
                                         .unit(style.unit()),
                                     axis);
}

// Cuts `own` as the parameter `member` of a parallel layer, which then has `own`.
void Adopt(at::Tensor& member, const at::Tensor& own, const TensorAxis& axis) {
  if (!own.defined()) return;
  const auto placement = Placements().OrWhole(member);
  if (!placement->whole()) {
    CutInPlace(own, *placement);
  } else if (placement->use(axis.axis().name) == AxisUse::kPartial) {
    SumGradientOver(axis, own);
  }
  member = own;
}

// Copies this rank's part of `whole` into a parameter of a parallel layer.
void Fill(const at::Tensor& parameter, const at::Tensor& whole) {
  if (parameter.defined()) TakeBoxes(whole.detach(), Placements().OrWhole(parameter)->boxes(), parameter);
}

void CutLinear(nn::LinearImpl& layer, const Style& style, const TensorAxis& axis) {
  std::visit(
      [&](const auto& chosen) {
        auto parallel = Like(layer.options, chosen, axis);
        Adopt(parallel->weight, layer.weight, axis);
        Adopt(parallel->bias, layer.bias, axis);
        layer.set_cut(std::make_shared<CutAs<typename decltype(parallel)::element_type>>(parallel));
      },
      style);
}

void CutEmbedding(nn::EmbeddingImpl& layer, const TensorAxis& axis) {
  VocabParallelEmbeddingOptions options(layer.options.num_embeddings(), layer.options.embedding_dim());
  if (layer.options.padding_idx().has_value()) options.padding_idx(*layer.options.padding_idx());
  auto parallel = Made<VocabParallelEmbeddingImpl>(options, axis);
  Adopt(parallel->weight, layer.weight, axis);
  layer.set_cut(std::make_shared<CutAs<VocabParallelEmbeddingImpl>>(parallel));
}

// Puts a parallel layer in the place of torch's own in a Sequential.
void ReplaceLinear(torch::nn::SequentialImpl& sequential, const std::string& child, const torch::nn::LinearImpl& layer,
                   const Style& style, const TensorAxis& axis) {
  std::visit(
      [&](const auto& chosen) {
        auto parallel = Like(layer.options, chosen, axis);
        const at::NoGradGuard no_grad;
        Fill(parallel->weight, layer.weight);
        Fill(parallel->bias, layer.bias);
        *(sequential.begin() + std::stol(child)) = torch::nn::AnyModule(parallel);
        sequential.replace_module(child, std::static_pointer_cast<torch::nn::Module>(parallel));
      },
      style);
}

// A layer that a plan names.
struct Chosen {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<torch::nn::SequentialImpl> sequential;  // that it is an element of
  const Style* style = nullptr;
};

void CheckKind(const Chosen& chosen) {
  const bool column = std::holds_alternative<ColwiseParallel>(*chosen.style);
  if (dynamic_cast<const nn::LinearImpl*>(chosen.module.get()) != nullptr) return;
  if (dynamic_cast<const nn::EmbeddingImpl*>(chosen.module.get()) != nullptr) {
    TORCH_CHECK(!column, "parallelize: ", chosen.name, " is an embedding, whose rows are cut: RowwiseParallel");
    return;
  }
  const bool linear = dynamic_cast<const torch::nn::LinearImpl*>(chosen.module.get()) != nullptr;
  TORCH_CHECK(linear && chosen.sequential != nullptr, "parallelize: ", chosen.name, " of type ", chosen.module->name(),
              " can't be cut: C++ replaces no typed member. Declare it as cohort::trainer::nn::Linear or Embedding, or "
              "put torch::nn::Linear into a Sequential");
}

std::vector<Chosen> Choose(const torch::nn::Module& model, const TensorPlan& plan) {
  std::vector<Chosen> chosen;
  std::set<size_t> used;
  const auto modules = model.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  for (const auto& item : modules) {
    for (size_t i = 0; i < plan.size(); ++i) {
      if (!FitsPattern(plan[i].first, item.key())) continue;
      used.insert(i);
      const size_t dot = item.key().rfind('.');
      const auto* parent = dot == std::string::npos ? nullptr : modules.find(item.key().substr(0, dot));
      chosen.push_back(
          {.name = item.key(),
           .module = item.value(),
           .sequential = parent == nullptr ? nullptr : std::dynamic_pointer_cast<torch::nn::SequentialImpl>(*parent),
           .style = &plan[i].second});
      CheckKind(chosen.back());
      break;
    }
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    TORCH_CHECK(used.contains(i), "parallelize: no module of the model has a name that fits \"", plan[i].first, "\"");
  }
  return chosen;
}

}  // namespace

bool FitsPattern(const std::string& pattern, const std::string& name) {
  // Tries each length of what a star stands for.
  const auto fits = [&](const auto& self, size_t p, size_t n) -> bool {
    if (p == pattern.size()) return n == name.size();
    if (pattern[p] != '*') return n < name.size() && pattern[p] == name[n] && self(self, p + 1, n + 1);
    for (size_t end = n;; ++end) {
      if (self(self, p + 1, end)) return true;
      if (end == name.size() || name[end] == '.') return false;
    }
  };
  return fits(fits, 0, 0);
}

std::vector<std::string> CutLayers(torch::nn::Module& model, const TensorPlan& plan, const TensorAxis& axis) {
  const std::vector<Chosen> chosen = Choose(model, plan);
  std::vector<std::string> names;
  for (const Chosen& each : chosen) {
    names.push_back(each.name);
    if (axis.size() == 1) continue;
    if (auto* linear = dynamic_cast<nn::LinearImpl*>(each.module.get())) {
      CutLinear(*linear, *each.style, axis);
    } else if (auto* embedding = dynamic_cast<nn::EmbeddingImpl*>(each.module.get())) {
      CutEmbedding(*embedding, axis);
    } else {
      ReplaceLinear(*each.sequential, each.name.substr(each.name.rfind('.') + 1),
                    dynamic_cast<const torch::nn::LinearImpl&>(*each.module), *each.style, axis);
    }
  }
  return names;
}

}  // namespace cohort::trainer
