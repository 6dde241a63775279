// Ranks that were set up otherwise than the others: all are told at once, and which one it is.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/autograd/random_place.h"
#include "tests/trainer/parallel/pipeline/pipeline_model.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Ten times what is promised, which is a second.
constexpr std::chrono::seconds kLongest{10};

class PipelineSetup : public testing::Test {
 protected:
  void SetUp() override {
    if (world->size() < 2) GTEST_SKIP() << "needs another rank";
    own_ = *world->Duplicate();
    schedule_ = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  }
  // The error of `call`, which comes soon.
  static std::string SoonThrown(const std::function<void()>& call) {
    const auto begin = std::chrono::steady_clock::now();
    std::string why = WhyThrown(call);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kLongest) << why;
    return why;
  }
  bool is_last() const { return world->rank() == world->size() - 1; }

  std::unique_ptr<comm::Communicator> own_;
  Schedule schedule_;
  torch::nn::Sequential model_ = Model();
  const Batch batch_ = BatchOf(8, 5);
  const std::string last_ = "rank " + std::to_string(world->size() - 1);
};

TEST_F(PipelineSetup, AnotherSeedOrStepIsRefusedBeforeTheFirstStep) {
  for (const bool of_seed : {true, false}) {
    own_ = *world->Duplicate();
    Pipeline pipeline(StagesFor(schedule_, model_, world->rank()), schedule_, *own_, {.loss = Loss});
    RandomPlace place = {.seed = 7, .step = 2};
    if (is_last() && of_seed) ++place.seed;
    if (is_last() && !of_seed) ++place.step;
    const RandomPlaceGuard guard(place);
    EXPECT_THAT(SoonThrown([&] { pipeline.step(batch_.inputs, batch_.targets); }),
                AllOf(HasSubstr(last_), of_seed ? HasSubstr("seed of random_place() \"8\" there, \"7\" on rank 0")
                                                : HasSubstr("step of random_place() \"3\" there, \"2\" on rank 0")));
    EXPECT_THAT(SoonThrown([&] { pipeline.step(batch_.inputs, batch_.targets); }),
                HasSubstr("an earlier step has failed"));
  }
}

TEST_F(PipelineSetup, OtherOptionsAreRefused) {
  EXPECT_THAT(SoonThrown([&] {
                Pipeline pipeline(StagesFor(schedule_, model_, world->rank()), schedule_, *own_,
                                  {.loss = Loss, .one_batch_per_turn = is_last()});
              }),
              AllOf(HasSubstr(last_), HasSubstr("one_batch_per_turn")));
}

}  // namespace
}  // namespace cohort::trainer
