// Programs that use TorchShard's layers wrongly in ways that would go wrong without a word: they get an error that says
// so.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/torchshard/convert.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/functional.h"
#include "cohort/trainer/torchshard/layers.h"
#include "tests/trainer/parallel/tensor/tensor_layers.h"

namespace cohort::trainer::torchshard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TorchShardMisuse : public testing::Test {
 protected:
  void SetUp() override { distributed::init_process_group(*world); }
  void TearDown() override {
    if (distributed::is_initialized()) distributed::destroy_process_group();
  }
};

TEST_F(TorchShardMisuse, CutLogitsThatHaveLostTheirTagAreRefused) {
  if (world->size() == 1) GTEST_SKIP() << "one rank has all classes";
  const int64_t classes = 4 * world->size();
  nn::ParallelLinear head(nn::ParallelLinearOptions(3, classes).dim(1));
  const at::Tensor target = torch::tensor({int64_t{0}, classes - 1, int64_t{1}});
  const at::Tensor lost = head(Random({3, 3}, 1)) * 2;  // the product has no tag
  VocabParallelCrossEntropyOptions counted, weighted;
  counted.num_classes(classes);
  weighted.weight(torch::ones({classes}));
  // With classes counted or weighted, targets that all are among the first rank's classes don't hide it.
  for (const auto& [options, targets] :
       {std::pair(counted, torch::zeros({3}, torch::kLong)), std::pair(weighted, torch::zeros({3}, torch::kLong)),
        std::pair(VocabParallelCrossEntropyOptions(), target)}) {
    EXPECT_THAT(ErrorOf([&, &options = options, &targets = targets] {
                  nn::ParallelCrossEntropyLoss loss(options);
                  loss(lost, targets);
                }),
                AllOf(HasSubstr("without a tag"), HasSubstr("register_parallel_dim(logits, -1)")));
  }
  register_parallel_dim(lost, -1);
  nn::ParallelCrossEntropyLoss loss(counted);
  EXPECT_TRUE(loss(lost, target).isfinite().item<bool>());
  // Whole logits, with targets that are ignored.
  VocabParallelCrossEntropyOptions ignored;
  ignored.ignore_index(10000);
  nn::ParallelCrossEntropyLoss plain(ignored);
  EXPECT_TRUE(plain(Random({3, 5}, 2), torch::tensor({0, 10000, 4})).isfinite().item<bool>());
}

TEST_F(TorchShardMisuse, TokensThatDifferOnOneRankAreNamedOnAll) {
  if (world->size() == 1) GTEST_SKIP() << "one rank has all tokens";
  const int last = world->size() - 1;
  for (const int64_t dim : {0, 1}) {
    nn::ParallelEmbedding words(nn::ParallelEmbeddingOptions(9, 5).dim(dim));
    const std::string other = "rank " + std::to_string(last);
    const at::Tensor tokens = torch::tensor({{0, 8}, {4, world->rank() == last ? 3 : 1}});
    EXPECT_THAT(ErrorOf([&] { words(tokens); }),
                AllOf(HasSubstr("ParallelEmbedding: all ranks"), HasSubstr(other), HasSubstr("number 3 is 3"),
                      HasSubstr("number 3 is 1"), HasSubstr("gather(tokens, 0)")));
    const at::Tensor shorter = torch::zeros({world->rank() == last ? 1 : 2}, torch::kLong);
    EXPECT_THAT(ErrorOf([&] { words(shorter); }), AllOf(HasSubstr(other), HasSubstr("of sizes [1]")));
    EXPECT_EQ(words(torch::tensor({0, 8})).size(1), 5) << "the group goes on";
  }
}

// Placements, graphs and hooks of an ended group refer to its communicators.
TEST_F(TorchShardMisuse, LayersOfAnEndedGroupAreRefused) {
  if (world->size() == 1) GTEST_SKIP() << "one rank cuts nothing";
  nn::ParallelLinear head(nn::ParallelLinearOptions(3, 8).dim(1)), rows(nn::ParallelLinearOptions(8, 3).dim(0));
  nn::ParallelEmbedding words(nn::ParallelEmbeddingOptions(9, 5).dim(0));
  torch::nn::Sequential model(head, rows);
  const at::Tensor x = Random({2, 3}, 3), tokens = torch::tensor({0, 8});
  const at::Tensor graph = model->forward(x).sum();
  distributed::destroy_process_group();
  EXPECT_THAT(ErrorOf([&] { head(x); }), HasSubstr("destroy_process_group has ended"));
  graph.backward();
  EXPECT_GT(clip_grad_norm_(model->parameters(), 1).item<double>(), 0);
  EXPECT_THAT(ErrorOf([&] { RefuseOtherParts("a wrapper", *world, "weight", head->weight); }),
              HasSubstr("have different parts"));
  distributed::init_process_group(*world, 1);
  for (const std::function<void()>& use :
       std::vector<std::function<void()>>{[&] { head(x); }, [&] { rows(torch::ones({2, 8})); }, [&] { words(tokens); },
                                          [&] { collect_state_dict(*model, state_dict(*model)); },
                                          [&] { register_ddp_parameters_to_ignore(*model); }}) {
    EXPECT_THAT(ErrorOf(use), AllOf(HasSubstr("process group"), HasSubstr("destroy_process_group has ended")));
  }
}

}  // namespace
}  // namespace cohort::trainer::torchshard
