#include "cohort/trainer/state/load_state_dict.h"

#include <map>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using State = std::map<std::string, at::Tensor>;

struct Net : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(3, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
};

State StateOfNet(const std::string& prefix = "") {
  Net net;
  State state;
  for (const auto& item : net.named_parameters())
    state[prefix + item.key()] = torch::full_like(item.value(), 7).detach();
  for (const auto& item : net.named_buffers()) state[prefix + item.key()] = torch::full_like(item.value(), 7);
  return state;
}

// Whether all parameters and buffers are those of StateOfNet.
bool IsLoaded(const torch::nn::Module& module) {
  bool loaded = true;
  for (const auto& item : module.named_parameters()) loaded = loaded && item.value().eq(7).all().item<bool>();
  for (const auto& item : module.named_buffers()) loaded = loaded && item.value().eq(7).all().item<bool>();
  return loaded;
}

// The error of loading; the module must be as it was.
std::string ErrorOfLoading(torch::nn::Module& module, const State& state, const LoadStateOptions& options = {}) {
  State before;
  for (const auto& item : module.named_parameters()) before[item.key()] = item.value().detach().clone();
  std::string error;
  try {
    load_state_dict(module, state, options);
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  }
  for (const auto& item : module.named_parameters()) EXPECT_TRUE(torch::equal(item.value(), before[item.key()]));
  return error;
}

TEST(LoadStateDict, PartsOfNamesThatAreWrappersDoNotCount) {
  for (const char* prefix : {"", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.module.",
                             "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."}) {
    Net net;
    load_state_dict(net, StateOfNet(prefix));
    EXPECT_TRUE(IsLoaded(net)) << prefix;
  }
  // Within, and of some parts alone.
  State state = StateOfNet();
  auto moved = state.extract("up.weight");
  moved.key() = "up.module.weight";
  state.insert(std::move(moved));
  Net net;
  load_state_dict(net, state);
  EXPECT_TRUE(IsLoaded(net));
}

// A model may have a part of that name, beside another.
struct WithModule : torch::nn::Module {
  torch::nn::Linear module = register_module("module", torch::nn::Linear(3, 4));
  torch::nn::Linear other = register_module("other", torch::nn::Linear(3, 4));
};

TEST(LoadStateDict, AnExactNameComesFirst) {
  WithModule net;
  State state;
  for (const auto& item : net.named_parameters()) state[item.key()] = torch::full_like(item.value(), 7).detach();
  load_state_dict(net, state);
  EXPECT_TRUE(IsLoaded(net));
  state["module.other.weight"] = torch::zeros({4, 3});
  EXPECT_THAT(ErrorOfLoading(net, state), HasSubstr("it has module.other.weight, which the module has not"));
}

TEST(LoadStateDict, AllNamesThatDifferAreListed) {
  Net net;
  State state = StateOfNet();
  state.erase("up.bias");
  state.erase("norm.num_batches_tracked");
  state["embeddings.position_ids"] = torch::arange(3);
  state["head.weight"] = torch::ones({2});
  EXPECT_THAT(ErrorOfLoading(net, state),
              AllOf(HasSubstr("it has no norm.num_batches_tracked, up.bias, which the module has; "
                              "it has embeddings.position_ids, head.weight, which the module has not"),
                    HasSubstr(".strict = false loads in part")));
  for (int i = 0; i < 30; ++i) state["more." + std::to_string(i)] = torch::ones({1});
  EXPECT_THAT(ErrorOfLoading(net, state), HasSubstr("and 12 others, which the module has not"));
}

TEST(LoadStateDict, LoadingInPartReturnsTheNamesThatDiffer) {
  Net net;
  State state = StateOfNet();
  state.erase("norm.num_batches_tracked");
  state["embeddings.position_ids"] = torch::arange(3);
  const StateNames apart = load_state_dict(net, state, {.strict = false});
  EXPECT_THAT(apart.missing, ElementsAre("norm.num_batches_tracked"));
  EXPECT_THAT(apart.unexpected, ElementsAre("embeddings.position_ids"));
  EXPECT_TRUE(net.up->weight.eq(7).all().item<bool>());
  state["up.weight"] = torch::ones({9, 9});
  EXPECT_THAT(ErrorOfLoading(net, state, {.strict = false}),
              HasSubstr("up.weight is of shape [9, 9] in the state and [4, 3]"));
}

TEST(LoadStateDict, SaysAndTakesAPrefix) {
  Net net;
  State state = StateOfNet("model.");
  state["optimizer.state.0.exp_avg"] = torch::ones({3});
  EXPECT_THAT(ErrorOfLoading(net, state),
              HasSubstr("7 of the 7 missing names behind \"model.\": call load_state_dict with "
                        ".prefix = \"model.\""));
  const StateNames apart = load_state_dict(net, state, {.prefix = "model."});
  EXPECT_THAT(apart.unexpected, IsEmpty());
  EXPECT_TRUE(IsLoaded(net));
  EXPECT_THAT(ErrorOfLoading(net, state, {.prefix = "net."}), HasSubstr("no name of the state begins with net."));
  struct Outer : torch::nn::Module {
    std::shared_ptr<Net> net = register_module("backbone", std::make_shared<Net>());
  } outer;
  EXPECT_THAT(ErrorOfLoading(outer, StateOfNet()),
              HasSubstr("7 of the 7 other names behind \"backbone.\": load into that part"));
}

TEST(LoadStateDict, EveryTensorThatDoesNotFitIsNamed) {
  Net net;
  State state = StateOfNet();
  state["up.weight"] = torch::ones({5, 3});
  state["up.bias"] = torch::ones({4}, at::kInt);
  state["norm.weight"] = torch::ones({4}, at::kComplexFloat);
  state["norm.num_batches_tracked"] = torch::tensor(1.5);
  state["norm.running_mean"] = torch::ones({4}).to_sparse();
  EXPECT_THAT(ErrorOfLoading(net, state),
              AllOf(HasSubstr("up.weight is of shape [5, 3] in the state and [4, 3] in the module"),
                    HasSubstr("up.bias is of type Int in the state and Float in the module"),
                    HasSubstr("norm.weight is of type ComplexFloat"), HasSubstr("norm.num_batches_tracked is of type"),
                    HasSubstr("norm.running_mean is no dense tensor")));
  state = StateOfNet();
  for (auto& [name, tensor] : state)
    tensor = tensor.is_floating_point() ? tensor.to(at::kBFloat16) : tensor.to(at::kInt);
  load_state_dict(net, state);
  EXPECT_TRUE(IsLoaded(net)) << "types of one kind are converted";
  EXPECT_EQ(net.up->weight.scalar_type(), at::kFloat);
}

// Hugging Face's files have a tied weight once.
struct Tied : torch::nn::Module {
  Tied() {
    register_module("head", std::make_shared<torch::nn::Module>())->register_parameter("weight", tokens->weight);
  }
  torch::nn::Embedding tokens = register_module("tokens", torch::nn::Embedding(5, 3));
};

TEST(LoadStateDict, ATiedTensorNeedsOneOfItsNames) {
  for (const char* name : {"tokens.weight", "head.weight"}) {
    Tied net;
    load_state_dict(net, {{name, torch::full({5, 3}, 7.0)}});
    EXPECT_TRUE(IsLoaded(net)) << name;
  }
  Tied net;
  EXPECT_THAT(ErrorOfLoading(net, {}), HasSubstr("it has no head.weight, tokens.weight"));
}

}  // namespace
}  // namespace cohort::trainer
