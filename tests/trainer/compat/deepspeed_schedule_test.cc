// The schedules give each step what DeepSpeed's own give it (make_deepspeed_schedules.py).
#include "cohort/trainer/compat/deepspeed_schedule.h"

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;

DeepSpeedConfig ConfigWith(const Json& scheduler) {
  const Json optimizer = {{"type", "AdamW"}, {"params", {{"lr", 0.4}, {"betas", {0.7, 0.95}}}}};
  const Json file = {{"train_batch_size", 1}, {"optimizer", optimizer}, {"scheduler", scheduler}};
  return ParseDeepSpeedConfig(file.dump(), 1);
}

TEST(DeepSpeedSchedule, GivesEachStepTheRateOfDeepSpeed) {
  std::ifstream file(COHORT_DEEPSPEED_SCHEDULES);
  const Json cases = Json::parse(file);
  ASSERT_GE(cases.size(), 20U);
  for (const Json& one : cases) {
    SCOPED_TRACE(one["scheduler"].dump());
    const DeepSpeedConfig config = ConfigWith(one["scheduler"]);
    for (size_t step = 0; step < one["rates"].size(); ++step) {
      const double rate = one["rates"][step];
      EXPECT_NEAR(LearningRateAt(config, static_cast<int64_t>(step)), rate, 1e-14) << step;
      const auto betas = BetasAt(config, static_cast<int64_t>(step));
      const double first = betas.has_value() ? betas->first : 0.7, second = betas.has_value() ? betas->second : 0.95;
      EXPECT_NEAR(first, one["betas"][step][0].get<double>(), 1e-14) << step;
      EXPECT_EQ(second, one["betas"][step][1].get<double>()) << step;
    }
  }
}

TEST(DeepSpeedSchedule, KeepsTheOptimizersRateWithoutAScheduler) {
  DeepSpeedConfig config;
  EXPECT_EQ(LearningRateAt(config, 0), 1e-3);
  EXPECT_EQ(LearningRateAt(config, 7), 1e-3);
  EXPECT_FALSE(BetasAt(config, 7).has_value());
}

}  // namespace
}  // namespace cohort::trainer
