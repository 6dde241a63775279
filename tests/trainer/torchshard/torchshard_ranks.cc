// TorchShard's API, and each defect of the original: what is written here fails there.
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "cohort/trainer/torchshard/convert.h"
#include "cohort/trainer/torchshard/cut_parameters.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/functional.h"
#include "cohort/trainer/torchshard/layers.h"
#include "tests/trainer/parallel/tensor/tensor_layers.h"

namespace cohort::trainer::torchshard {
namespace {

using torch::nn::functional::cross_entropy;

// Groups of all ranks, or of half of them where that is possible.
class TorchShard : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (halves() && world->size() % 2 != 0) GTEST_SKIP() << "skipped: TorchShard: an odd number of ranks has no halves";
    distributed::init_process_group(*world, halves() ? world->size() / 2 : -1);
  }
  void TearDown() override {
    if (distributed::is_initialized()) distributed::destroy_process_group();
  }
  bool halves() const { return GetParam(); }
  int group() const { return world->rank() / distributed::get_group_size(); }
  // The rows of this rank's group in a tensor that counts those of all ranks in front.
  at::Tensor OfGroup(const at::Tensor& x) const {
    const int64_t rows = x.size(0) / distributed::get_world_size() * distributed::get_group_size();
    return x.narrow(0, group() * rows, rows);
  }
};

INSTANTIATE_TEST_SUITE_P(Groups, TorchShard, testing::Bool());

at::Tensor OfRank(const at::Tensor& x) { return x.chunk(world->size(), 0)[world->rank()]; }

// The original's gather and scatter count the ranks of the world in groups that are smaller.
TEST_P(TorchShard, GathersAndScattersInItsGroup) {
  const int n = distributed::get_group_size();
  EXPECT_EQ(distributed::get_world_size(), world->size());
  const at::Tensor whole = Random({4, 5}, 1);  // features need not divide
  const at::Tensor part = distributed::scatter(whole, -1);
  EXPECT_TRUE(torch::equal(part, torchshard::slice(whole, -1)));
  EXPECT_EQ(get_parallel_dim(part), ParallelDim(-1));
  EXPECT_TRUE(torch::equal(distributed::gather(part, -1, 5), whole));
  const at::Tensor mine = torch::full({2, 3}, world->rank(), torch::kFloat32);
  const at::Tensor all = distributed::gather(mine, 0);
  ASSERT_EQ(all.size(0), 2 * n);
  for (int i = 0; i < n; ++i) EXPECT_EQ(all[2 * i][0].item<float>(), group() * n + i);
  EXPECT_EQ(distributed::reduce(torch::ones({1})).item<float>(), n);
}

TEST_P(TorchShard, LayersEqualTorchs) {
  for (const int64_t dim : {0, 1, -1}) {
    const std::string what = "dim " + std::to_string(dim);
    torch::manual_seed(5);
    nn::ParallelLinear cut(nn::ParallelLinearOptions(7, 5).dim(dim));
    torch::manual_seed(5);
    nn::ParallelLinear plain(nn::ParallelLinearOptions(7, 5));
    const at::Tensor x = Random({3, 7}, 2).requires_grad_(), y = x.detach().clone().requires_grad_();
    at::Tensor out = cut(x);
    if (dim != 0) out = distributed::gather(out, -1, 5);
    ExpectClose(out.detach(), plain(y).detach(), what);
    out.pow(2).sum().backward();
    plain(y).pow(2).sum().backward();
    ExpectParts(*cut, *plain, what);
    ExpectClose(x.grad(), y.grad(), what + ": gradient of the input", 1e-4);
  }
}

TEST_P(TorchShard, ARowLayerTakesTheOutputOfAColumnLayer) {
  nn::ParallelLinear first(nn::ParallelLinearOptions(4, 6).dim(1)), second(nn::ParallelLinearOptions(6, 3).dim(0));
  torch::nn::Sequential model(first, torch::nn::Functional([](const at::Tensor& x) { return torch::relu(x); }),
                              nn::RegisterParallelDim(ParallelDim(-1)), second);
  const at::Tensor y = model->forward(Random({2, 4}, 3));
  EXPECT_EQ(y.size(1), 3);
  EXPECT_FALSE(get_parallel_dim(y).has_value());
}

TEST_P(TorchShard, EmbeddingsEqualTorchs) {
  for (const int64_t dim : {0, 1}) {
    torch::manual_seed(6);
    nn::ParallelEmbedding cut(nn::ParallelEmbeddingOptions(9, 5).padding_idx(2).dim(dim));
    torch::manual_seed(6);
    nn::ParallelEmbedding plain(nn::ParallelEmbeddingOptions(9, 5).padding_idx(2));
    const at::Tensor tokens = torch::tensor({{0, 8, 2}, {4, 4, 1}});
    const std::string what = "embedding, dim " + std::to_string(dim);
    ExpectClose(cut(tokens).detach(), plain(tokens).detach(), what);
    cut(tokens).pow(2).sum().backward();
    plain(tokens).pow(2).sum().backward();
    ExpectParts(*cut, *plain, what);
  }
}

// In the original the tag is an attribute of a Python object, which view does not hand on.
TEST_P(TorchShard, TagsOutliveViews) {
  const at::Tensor x = torch::ones({2, 3, 4});
  register_parallel_dim(x, 1);
  EXPECT_EQ(get_parallel_dim(x), ParallelDim(-1));
  EXPECT_EQ(get_parallel_dim(x.view({6, 4})), ParallelDim(-1));
  EXPECT_EQ(get_parallel_dim(x.flatten(0, 1).unsqueeze(0)), ParallelDim(-1));
  EXPECT_EQ(get_parallel_dim(x.detach()), ParallelDim(-1));
  EXPECT_FALSE(get_parallel_dim(x.view({2, 12})).has_value());  // other features
  EXPECT_FALSE(get_parallel_dim(x.clone()).has_value());
  register_parallel_dim(x, std::nullopt);
  EXPECT_FALSE(get_parallel_dim(x).has_value());
  EXPECT_THROW(register_parallel_dim(x, 2), c10::Error);
  for (int i = 0; i < 1000; ++i) register_parallel_dim(torch::ones({1, 1}), -1);
  EXPECT_FALSE(get_parallel_dim(torch::ones({1, 1})).has_value());  // memory that is used again has no old tag
}

// In the original weight and ignore_index are ignored, and 'none' returns [n, 1].
TEST_P(TorchShard, LossChoosesByItsInputAndHasEveryOption) {
  const at::Tensor logits = Random({6, 10}, 7), target = torch::tensor({0, 9, 3, -1, 5, 3});
  for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    VocabParallelCrossEntropyOptions options;
    options.weight(Random({10}, 8).abs()).ignore_index(-1).reduction(reduction).num_classes(10);
    nn::ParallelCrossEntropyLoss loss(options);
    const at::Tensor plain = loss(logits, target);
    const at::Tensor cut = distributed::scatter(logits, -1);
    register_parallel_dim(cut, -1);
    ExpectClose(loss(cut, target), plain, "reduction " + std::to_string(reduction));
    EXPECT_EQ(plain.dim(), reduction == at::Reduction::None ? 1 : 0);
  }
}

// The program of TorchShard's tutorials: a data-parallel backbone, and a head over the group's images.
struct Faces : torch::nn::Module {
  static constexpr int64_t kClasses = 13;
  explicit Faces(ParallelDim dim) {
    torch::manual_seed(11);
    body = register_module("body", torch::nn::Linear(4, 6));
    nested = register_module("nested", torch::nn::Sequential(nn::ParallelLinear(6, 8), torch::nn::ReLU()));
    head = register_module("head", nn::ParallelLinear(nn::ParallelLinearOptions(8, kClasses)));
    const at::NoGradGuard no_grad;
    if (dim.has_value()) converted = convert_parallel_linear(*head, dim);
  }
  at::Tensor forward(const at::Tensor& x) { return nested->forward(torch::tanh(body(x))); }
  at::Tensor Loss(const at::Tensor& features, const at::Tensor& target) {
    VocabParallelCrossEntropyOptions options;
    options.num_classes(kClasses);
    const at::Tensor x = distributed::gather(features, 0);
    return nn::functional::parallel_cross_entropy(head(x), distributed::gather(target, 0), options);
  }
  torch::nn::Linear body{nullptr};
  torch::nn::Sequential nested{nullptr};
  nn::ParallelLinear head{nullptr};
  Conversion converted;
};

// DDP must see only what it averages, so it wraps the whole model and ignores the head. The original's backbone has
// gradients that are too small by the number of ranks, and its own test multiplies them.
TEST_P(TorchShard, BackboneGradientsAreThoseOfDdp) {
  for (const int64_t dim : {0, 1}) {
    auto plain = std::make_shared<Faces>(std::nullopt), cut = std::make_shared<Faces>(dim);
    EXPECT_EQ(cut->converted.converted, (std::vector<std::string>{"itself"}));
    const at::Tensor images = Random({3 * world->size(), 4}, 12);
    const at::Tensor labels =
        torch::randint(Faces::kClasses, {3 * world->size()}, at::detail::createCPUGenerator(13), torch::kInt64);
    cross_entropy(plain->head(plain->forward(images)), labels).backward();  // what DDP's average over ranks is
    DistributedDataParallelOptions options;
    options.ignored_parameters = register_ddp_parameters_to_ignore(*cut);
    EXPECT_EQ(options.ignored_parameters.size(), distributed::get_group_size() == 1 ? 0 : dim == 0 ? 1 : 2);
    options.find_unused_parameters = false;
    DistributedDataParallel<Faces> ddp(cut, *world, options);
    cut->Loss(ddp.forward(OfRank(images)), OfRank(labels)).backward();
    ExpectParts(*cut, *plain, "dim " + std::to_string(dim), 1e-4);
  }
}

// Layers that are cut, whose rows each rank takes to a data-parallel tail: the way back from a head.
struct CutFirst : torch::nn::Module {
  explicit CutFirst(ParallelDim dim_in) : dim(dim_in) {
    torch::manual_seed(17);
    wide = register_module("wide", nn::ParallelLinear(nn::ParallelLinearOptions(4, 6).dim(dim)));
    tail = register_module("tail", torch::nn::Linear(6, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = wide(x);
    if (dim == ParallelDim(1)) y = distributed::gather(y, -1, 6);
    y = torch::tanh(y);
    return tail(dim.has_value() ? distributed::scatter(y, 0) : y);
  }
  ParallelDim dim;
  nn::ParallelLinear wide{nullptr};
  torch::nn::Linear tail{nullptr};
};

// Each rank's loss is the mean over its own rows. The original's gradients in front of scatter are too large by the
// group's size.
TEST_P(TorchShard, GradientsThroughScatterOfRowsAreOneProcesss) {
  const int groups = world->size() / distributed::get_group_size();
  for (const int64_t dim : {0, 1}) {
    const std::string what = "dim " + std::to_string(dim);
    auto cut = std::make_shared<CutFirst>(dim), plain = std::make_shared<CutFirst>(std::nullopt);
    const at::Tensor images = Random({3 * world->size(), 4}, 18).requires_grad_();
    const at::Tensor own = OfGroup(images).detach().clone().requires_grad_();
    plain->forward(images).pow(2).mean().backward();
    DistributedDataParallelOptions options;
    options.ignored_parameters = register_ddp_parameters_to_ignore(*cut);
    DistributedDataParallel<CutFirst> ddp(cut, *world, options);
    ddp.forward(own).pow(2).mean().backward();
    ExpectParts(*cut, *plain, what, 1e-4);
    ExpectClose(own.grad() / groups, OfGroup(images.grad()), what + ": gradient of the input", 1e-4);
  }
}

TEST_P(TorchShard, GatherAndScatterUndoEachOther) {
  const int n = distributed::get_group_size();
  const struct {
    std::vector<int64_t> sizes;
    int64_t dim;
  } cases[] = {{{2 * n + 1, 3}, 0}, {{2 * n + 1, 3}, -2}, {{3, 2 * n + 1}, -1}, {{2 * n + 1}, 0}, {{2 * n + 1}, -1}};
  for (const auto& each : cases) {
    const at::Tensor x = Random(each.sizes, 19).requires_grad_();
    const at::Tensor y = distributed::gather(distributed::scatter(x, each.dim), each.dim, 2 * n + 1);
    const std::string what = std::to_string(each.sizes.size()) + " dimensions, dim " + std::to_string(each.dim);
    ExpectClose(y.detach(), x.detach(), what);
    y.pow(2).sum().backward();
    ExpectClose(x.grad(), 2 * x.detach(), what + ": gradient");
  }
}

// Parameters that are deep in the model are left alone too. The original writes names without their path.
TEST_P(TorchShard, NestedParametersAreIgnoredByDdp) {
  if (distributed::get_group_size() == 1) return;
  struct Deep : torch::nn::Module {
    Deep() {
      body = register_module("body", torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::Linear(6, 6)));
      tail = register_module("tail", torch::nn::Sequential(torch::nn::Linear(6, 4)));
    }
    torch::nn::Sequential body{nullptr}, tail{nullptr};
  };
  const auto model = std::make_shared<Deep>();
  const Conversion conversion = convert_parallel_linear(*model, 1);
  EXPECT_EQ(conversion.converted, (std::vector<std::string>{"body.0", "body.1", "tail.0"}));
  EXPECT_TRUE(conversion.not_converted.empty());
  EXPECT_EQ(register_ddp_parameters_to_ignore(*model).size(), 6);
  for (const auto& item : model->named_parameters()) {
    EXPECT_FALSE(Placements().Of(item.value())->whole()) << item.key();
  }
}

struct Typed : torch::nn::Module {
  Typed() {
    fixed = register_module("fixed", torch::nn::Linear(4, 4));
    words = register_module("words", torch::nn::Embedding(6, 4));
    ours = register_module("ours", nn::ParallelEmbedding(6, 4));
  }
  torch::nn::Linear fixed{nullptr};
  torch::nn::Embedding words{nullptr};
  nn::ParallelEmbedding ours{nullptr};
};

TEST_P(TorchShard, NamesModulesThatItCantConvert) {
  Typed model;
  const Conversion linear = convert_parallel_linear(model, 0);
  EXPECT_TRUE(linear.converted.empty());
  EXPECT_EQ(linear.not_converted, (std::vector<std::string>{"fixed"}));
  // The original cuts features whatever dim is.
  const Conversion embedding = convert_parallel_embedding(model, 0);
  EXPECT_EQ(embedding.converted, (std::vector<std::string>{"ours"}));
  EXPECT_EQ(embedding.not_converted, (std::vector<std::string>{"words"}));
  EXPECT_EQ(model.ours->weight.size(1), 4);
  EXPECT_THROW(model.ours->parallelize(0), c10::Error);
}

TEST_P(TorchShard, ConvertedLayersKeepTheirValuesAndTheirPlace) {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(5, 7), nn::RegisterParallelDim(ParallelDim(-1)));
  const at::Tensor x = Random({2, 5}, 14), expected = model->forward(x).detach();
  register_parallel_dim(expected, std::nullopt);
  convert_parallel_linear(*model, 1);
  ExpectClose(distributed::gather(model->forward(x), -1, 7).detach(), expected, "converted");
}

// The parameters stay the same tensors: frozen ones stay frozen, and a layer in two places stays one.
TEST_P(TorchShard, ConvertedLayersKeepTheirParameters) {
  torch::nn::Linear frozen(4, 4), twice(4, 4);
  for (at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
  torch::nn::Embedding words(torch::nn::EmbeddingOptions(6, 4));
  words->weight.requires_grad_(false);
  torch::nn::Sequential model(words, frozen, twice, torch::nn::Tanh(), twice);
  const at::Tensor weight = twice->weight, tokens = torch::tensor({0, 5, 2});
  const at::Tensor expected = model->forward(tokens).detach();
  const Conversion conversion = convert_parallel_linear(*model, 0);
  EXPECT_EQ(conversion.converted, (std::vector<std::string>{"1", "2", "4"}));
  EXPECT_EQ(convert_parallel_embedding(*model, 0).converted, (std::vector<std::string>{"0"}));
  EXPECT_EQ(model->ptr(2), model->ptr(4));
  EXPECT_TRUE(model->named_parameters()["2.weight"].is_same(weight));
  EXPECT_EQ(weight.size(1), torchshard::slice(torch::empty({4, 4}), 1).size(1)) << "this rank's part";
  const at::Tensor out = model->forward(tokens);
  ExpectClose(out.detach(), expected, "converted");
  out.sum().backward();
  for (const auto& item : model->named_parameters()) {
    const bool trains = item.key().starts_with("2.") || item.key().starts_with("4.");
    EXPECT_EQ(item.value().requires_grad(), trains) << item.key();
    EXPECT_EQ(item.value().grad().defined(), trains) << item.key();
  }
}

// A typed member would go on with a weight of which it needs all.
TEST_P(TorchShard, LayersThatShareAParameterWithAnotherStayWhole) {
  Typed model;
  model.register_module("list", torch::nn::Sequential(model.fixed));
  EXPECT_TRUE(convert_parallel_linear(model, 1).converted.empty());
  EXPECT_EQ(model.fixed->weight.size(0), 4);
  torch::nn::Linear head(4, 6);
  head->weight = head->register_parameter("tied", model.words->weight);
  torch::nn::Sequential tied(head);
  model.register_module("tied", tied);
  EXPECT_EQ(convert_parallel_linear(model, 1).not_converted, (std::vector<std::string>{"fixed", "tied.0"}));
  EXPECT_EQ(model.words->weight.size(0), 6);
}

// The original makes all of a weight on every rank before it takes its slice.
TEST_P(TorchShard, NoRankHasTheWholeWeight) {
  nn::ParallelLinear head(nn::ParallelLinearOptions(3, 1000).dim(1));
  EXPECT_EQ(head->weight.numel(), torchshard::slice(torch::empty({1000, 3}), 0).numel());
  EXPECT_EQ(head->weight.storage().nbytes(), static_cast<size_t>(head->weight.numel() * 4));
}

TEST_P(TorchShard, StateIsCollectedAndRelocated) {
  auto cut = std::make_shared<Faces>(1), other = std::make_shared<Faces>(0),
       plain = std::make_shared<Faces>(std::nullopt);
  const StateDict whole = collect_state_dict(*cut, state_dict(*cut));
  for (const auto& item : plain->named_parameters()) {
    EXPECT_TRUE(torch::equal(whole[item.key()], item.value())) << item.key();
  }
  for (at::Tensor& parameter : other->parameters()) {
    const at::NoGradGuard no_grad;
    parameter.zero_();
  }
  load_state_dict(*other, relocate_state_dict(*other, whole));
  ExpectParts(*other, *plain, "relocated", 0);
  EXPECT_THROW(load_state_dict(*plain, {{{"nothing", torch::ones({1})}}}), c10::Error);
}

// A layer of one's own by the template in cut_parameters.h.
struct Cosine : torch::nn::Module {
  Cosine(int64_t in, int64_t classes) {
    weight = register_cut_parameter(*this, "weight", {classes, in}, 0);
    nn::init::shard_init_helper_(InitRule::Normal(0, 1), weight);
  }
  at::Tensor forward(const at::Tensor& x) {
    namespace F = torch::nn::functional;
    const at::Tensor logits = nn::functional::parallel_linear(F::normalize(x), F::normalize(weight), {}, 1) * 8;
    register_parallel_dim(logits, -1);
    return logits;
  }
  at::Tensor weight;
};

TEST_P(TorchShard, AUsersOwnParallelLayerGivesTheWholeResult) {
  torch::manual_seed(21);
  Cosine layer(4, 9);
  const at::Tensor all = distributed::gather(layer.weight.detach(), 0, 9);
  namespace F = torch::nn::functional;
  const at::Tensor x = Random({5, 4}, 22), target = torch::tensor({0, 2, 4, 6, 8});
  VocabParallelCrossEntropyOptions options;
  options.num_classes(9);
  ExpectClose(nn::functional::parallel_cross_entropy(layer.forward(x), target, options).detach(),
              cross_entropy(F::normalize(x).matmul(F::normalize(all).t()) * 8, target), "user's layer");
}

TEST_P(TorchShard, TrainsWithAmpAndZero) {
  auto cut = std::make_shared<Faces>(1), plain = std::make_shared<Faces>(std::nullopt);
  const at::Tensor images = Random({4 * world->size(), 4}, 31);
  const at::Tensor labels = images.narrow(1, 0, 4).argmax(1);
  DistributedDataParallelOptions options;
  options.ignored_parameters = register_ddp_parameters_to_ignore(*cut);
  DistributedDataParallel<Faces> ddp(cut, *world, options);
  // ZeRO splits the state of what is whole; each rank steps its own part of the head.
  std::vector<at::Tensor> replicated;
  for (const at::Tensor& parameter : cut->parameters()) {
    const auto placement = Placements().Of(parameter);
    if (placement == nullptr || placement->whole()) replicated.push_back(parameter);
  }
  ZeroRedundancyOptimizer<torch::optim::SGD> zero(replicated, *world, torch::optim::SGDOptions(0.5));
  std::unique_ptr<torch::optim::SGD> own;
  if (!options.ignored_parameters.empty()) {
    own = std::make_unique<torch::optim::SGD>(options.ignored_parameters, torch::optim::SGDOptions(0.5));
  }
  torch::optim::SGD single(plain->parameters(), torch::optim::SGDOptions(0.5));
  GradScaler scaler({}, {world.get()});  // gradients are split over the group, and each rank has other ones
  for (int step = 0; step < 4; ++step) {
    zero.zero_grad();
    if (own != nullptr) own->zero_grad();
    single.zero_grad();
    {
      const Autocast autocast(at::kCPU, at::kBFloat16, /*enabled=*/step == 3);
      scaler.scale(cut->Loss(ddp.forward(OfRank(images)), OfRank(labels))).backward();
      cross_entropy(plain->head(plain->forward(images)), labels).backward();
    }
    EXPECT_TRUE(scaler.step(zero));
    if (own != nullptr) {
      EXPECT_TRUE(scaler.step(*own));
    }
    scaler.update();
    single.step();
    ExpectParts(*cut, *plain, "step " + std::to_string(step), step == 3 ? 5e-2 : 1e-4);
  }
}

TEST(TorchShardGroups, GroupsThatCannotBeAreRefusedWithTheReason) {
  EXPECT_THROW(distributed::get_group(), c10::Error);
  EXPECT_THROW(distributed::init_process_group(*world, world->size() + 1), c10::Error);
  EXPECT_THROW(distributed::init_process_group(*world, 0), c10::Error);
  distributed::init_process_group(*world);
  EXPECT_THROW(distributed::init_process_group(*world), c10::Error);
  distributed::destroy_process_group();
  EXPECT_FALSE(distributed::is_initialized());
}

}  // namespace
}  // namespace cohort::trainer::torchshard
