// A job of one agent, whose event loop runs the rendezvous.
#include "cohort/launcher/agent/link/own_rendezvous.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

// An agent with its rendezvous, in a loop that ends when the rendezvous has nothing more to say.
class OwnRendezvousTest : public ::testing::Test {
 protected:
  void Run(v1::JobPlan plan, std::function<void(const v1::ToAgent&)> on_message) {
    auto created = OwnRendezvous::Create(
        &loop_, std::move(plan), [this](v1::FromNode news) { news_.push_back(std::move(news)); },
        [this](v1::JobReport report) { report_ = std::move(report); });
    ASSERT_TRUE(created.ok()) << created.status();
    rendezvous_ = std::move(*created);
    rendezvous_->Join(MakeOffer(0), {.on_message =
                                         [this, on_message = std::move(on_message)](const v1::ToAgent& message) {
                                           EXPECT_FALSE(message.has_beat());
                                           EXPECT_FALSE(in_callback_);
                                           in_callback_ = true;
                                           on_message(message);
                                           in_callback_ = false;
                                         },
                                     .on_lost =
                                         [this](const absl::Status& why) {
                                           EXPECT_FALSE(lost_.has_value());
                                           lost_ = why;
                                           loop_.Post([this] { loop_.Quit(); });
                                         }});
    loop_.After(std::chrono::seconds(60), [this] {
      ADD_FAILURE() << "the job has not ended";
      loop_.Quit();
    });
    loop_.Run();
    rendezvous_.reset();
  }

  void Start(uint32_t ranks) {
    v1::FromAgent started;
    started.mutable_started();
    rendezvous_->Send(started);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      v1::FromAgent exit;
      *exit.mutable_exit() = Exited(rank, 0);
      rendezvous_->Send(exit);
    }
    Done();
  }
  void Done() {
    v1::FromAgent done;
    done.mutable_done()->set_node(0);
    rendezvous_->Send(done);
  }

  EventLoop loop_;
  std::unique_ptr<OwnRendezvous> rendezvous_;
  bool in_callback_ = false;
  std::vector<v1::FromNode> news_;
  std::optional<v1::JobReport> report_;
  std::optional<absl::Status> lost_;
};

TEST_F(OwnRendezvousTest, AnAgentThatHostsTheRendezvousRunsAJobToItsEnd) {
  std::vector<v1::Assignment> assignments;
  Run(MakePlan(1, 3), [&](const v1::ToAgent& message) {
    if (!message.has_assignment()) return;
    assignments.push_back(message.assignment());
    Start(3);
  });
  ASSERT_EQ(assignments.size(), 1);
  EXPECT_EQ(assignments[0].placement().ranks_size(), 3);
  EXPECT_EQ(assignments[0].nodes_size(), 1);  // the table that comes before

  ASSERT_TRUE(report_.has_value());
  EXPECT_EQ(report_->exit_code(), 0) << report_->headline();
  EXPECT_TRUE(lost_.has_value() && lost_->ok());
}

TEST_F(OwnRendezvousTest, AStopEndsTheJobOfAnAgentThatHostsTheRendezvous) {
  bool stopped = false;
  Run(MakePlan(1, 1), [&](const v1::ToAgent& message) {
    if (message.has_assignment()) rendezvous_->OnEvent(StopRequested{"stopped by a test", 130});
    if (!message.has_stop()) return;
    stopped = true;
    v1::FromAgent exit;
    *exit.mutable_exit() = Killed(0, 15, true);
    rendezvous_->Send(exit);
    Done();
  });
  EXPECT_TRUE(stopped);
  ASSERT_TRUE(report_.has_value());
  EXPECT_EQ(report_->exit_code(), 130) << report_->headline();
}

// Sweeping and joining block the loop for seconds. Nobody is silent who runs the machine.
TEST_F(OwnRendezvousTest, ALoopThatWasBlockedLosesNothing) {
  Run(MakePlan(1, 1), [&](const v1::ToAgent& message) {
    if (!message.has_assignment()) return;
    std::this_thread::sleep_for(kSilenceTimeout + std::chrono::milliseconds(300));
    loop_.After(std::chrono::milliseconds(50), [this] { Start(1); });
  });
  ASSERT_TRUE(report_.has_value());
  EXPECT_EQ(report_->exit_code(), 0) << report_->headline();
  EXPECT_TRUE(news_.empty());
}

TEST_F(OwnRendezvousTest, ARefusedOfferEndsTheRendezvous) {
  std::string refused;
  v1::JobPlan plan = MakePlan(1, 1);
  auto created = OwnRendezvous::Create(&loop_, plan, [](const v1::FromNode&) {}, [](const v1::JobReport&) {});
  ASSERT_TRUE(created.ok()) << created.status();
  v1::NodeOffer offer = MakeOffer(0);
  offer.set_protocol(kRendezvousProtocol + 1);
  (*created)->Join(offer, {.on_message = [&](const v1::ToAgent& message) { refused = message.refused(); },
                           .on_lost =
                               [&](const absl::Status& why) {
                                 EXPECT_TRUE(why.ok()) << why;
                                 loop_.Quit();
                               }});
  loop_.Run();
  EXPECT_NE(refused, "");
}

TEST_F(OwnRendezvousTest, APlanOfSeveralAgentsIsRefused) {
  v1::JobPlan plan = MakePlan(2, 1);
  EXPECT_EQ(OwnRendezvous::Create(&loop_, plan, {}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  plan = MakePlan(1, 1);
  plan.add_spares();
  EXPECT_EQ(OwnRendezvous::Create(&loop_, plan, {}, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cohort::launcher
