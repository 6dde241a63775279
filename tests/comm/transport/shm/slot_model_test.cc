// The slot protocol, proved for small bounds, and every part of it shown to be needed.
#include "tests/comm/transport/shm/slot_model.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/nightly.h"

namespace cohort::comm::testing {
namespace {

TEST(SlotModel, NoInterleavingReadsWrongDataOrLosesAWakeUp) {
  std::vector<SlotModelOptions> all = {{.readers = 1, .slots = 1, .messages = 4},
                                       {.readers = 1, .slots = 2, .messages = 5},
                                       {.readers = 1, .slots = 4, .messages = 7},
                                       {.readers = 2, .slots = 1, .messages = 2}};
  if (cohort::testing::Nightly()) all.push_back({.readers = 2, .slots = 2, .messages = 3});  // 3 million states
  for (const SlotModelOptions& options : all) {
    const SlotModelResult result = ExploreSlotModel(options);
    EXPECT_EQ(result.verdict, SlotVerdict::kProved) << options.readers << " readers, " << options.slots << " slots";
    EXPECT_GT(result.states, 100u);
  }
}

struct Broken {
  const char* what;
  bool SlotModelOptions::* part;
  SlotVerdict verdict;
};

class BrokenSlotModel : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenSlotModel, TheExplorerFindsEachBrokenPart) {
  for (const int readers : {1, 2}) {
    SlotModelOptions options{.readers = readers, .slots = readers == 1 ? 2 : 1, .messages = 3};
    options.*GetParam().part = false;
    EXPECT_EQ(ExploreSlotModel(options).verdict, GetParam().verdict) << readers << " readers";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Parts, BrokenSlotModel,
    ::testing::Values(Broken{"PublishFence", &SlotModelOptions::publish_fence, SlotVerdict::kStuck},
                      Broken{"AckFence", &SlotModelOptions::ack_fence, SlotVerdict::kStuck},
                      Broken{"AnnounceFence", &SlotModelOptions::announce_fence, SlotVerdict::kStuck},
                      Broken{"LookAgain", &SlotModelOptions::look_again, SlotVerdict::kStuck},
                      Broken{"TokenFirst", &SlotModelOptions::token_first, SlotVerdict::kStuck},
                      Broken{"ReleaseStamp", &SlotModelOptions::release_stamp, SlotVerdict::kWrongData},
                      Broken{"CompareNumber", &SlotModelOptions::compare_number, SlotVerdict::kWrongData},
                      Broken{"AckAfterRead", &SlotModelOptions::ack_after_read, SlotVerdict::kWrongData},
                      Broken{"HeedAcks", &SlotModelOptions::heed_acks, SlotVerdict::kWrongData}),
    [](const auto& info) { return std::string(info.param.what); });

}  // namespace
}  // namespace cohort::comm::testing
