// Names of services, over the rendezvous' own variables.
#include "cohort/launcher/agent/mpi/service_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/launcher/agent/mpi/job_variables.h"

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using Outcome = ServiceNames::Outcome;

class ServiceNamesTest : public ::testing::Test {
 protected:
  void Settle() { RunPosted(&loop_); }
  Outcome Publish(const std::string& name, const std::string& value) {
    std::optional<Outcome> outcome;
    names_.Publish(name, value, [&](Outcome its) { outcome = its; });
    Settle();
    return outcome.value();
  }
  Outcome Unpublish(const std::string& name) {
    std::optional<Outcome> outcome;
    names_.Unpublish(name, [&](Outcome its) { outcome = its; });
    Settle();
    return outcome.value();
  }
  std::optional<std::string> Look(const std::string& name) {
    std::optional<std::string> found;
    bool answered = false;
    names_.Look(name, std::chrono::milliseconds(0), [&](std::optional<std::string> value) {
      found = std::move(value);
      answered = true;
    });
    Settle();
    EXPECT_TRUE(answered);
    return found;
  }

  EventLoop loop_;
  JobVariables variables_{&loop_};
  StoredValues store_{&loop_,
                      ".mpi/1/",
                      {.ask = variables_.AskFor([this](const v1::VariableReply& reply) { store_.OnReply(reply); }),
                       .on_refused = [](const std::string&) {}}};
  ServiceNames names_{&loop_, &store_, "pmi1"};
};

TEST_F(ServiceNamesTest, FindsWhatWasPublished) {
  EXPECT_EQ(Look("s"), std::nullopt);
  EXPECT_EQ(Publish("s", "port"), Outcome::kDone);
  EXPECT_EQ(Look("s"), "port");
  EXPECT_EQ(Publish("s", "another"), Outcome::kTaken);
  EXPECT_EQ(Look("s"), "port");
  EXPECT_EQ(Unpublish("s"), Outcome::kDone);
  EXPECT_EQ(Unpublish("s"), Outcome::kUnknown);
  EXPECT_EQ(Look("s"), std::nullopt);
  EXPECT_EQ(Publish("s", ""), Outcome::kDone) << "an empty value is one";
  EXPECT_EQ(Look("s"), "");
}

TEST_F(ServiceNamesTest, TellsApartTheNamesOfLibraries) {
  ServiceNames others(&loop_, &store_, "pmix");
  EXPECT_EQ(Publish("s", "port"), Outcome::kDone);
  std::vector<bool> found;
  others.Look("s", std::chrono::milliseconds(0),
              [&](const std::optional<std::string>& value) { found.push_back(value.has_value()); });
  Settle();
  EXPECT_THAT(found, ElementsAre(false));
}

TEST_F(ServiceNamesTest, WaitsForANameThatIsNotThereYet) {
  std::vector<std::string> found;
  names_.Look("late", std::chrono::seconds(60),
              [&](const std::optional<std::string>& value) { found.push_back(value.value_or("none")); });
  Settle();
  EXPECT_THAT(found, ElementsAre());
  EXPECT_EQ(Publish("late", "port"), Outcome::kDone);
  EXPECT_THAT(found, ElementsAre("port"));
}

TEST_F(ServiceNamesTest, HoldsNoMoreThanItsLimits) {
  EXPECT_EQ(Publish("", "port"), Outcome::kTooLong);
  EXPECT_EQ(Publish(std::string(ServiceNames::kMostNameBytes + 1, 'n'), "port"), Outcome::kTooLong);
  EXPECT_EQ(Publish("s", std::string(ServiceNames::kMostValueBytes + 1, 'v')), Outcome::kTooLong);
  std::vector<Outcome> outcomes;
  for (size_t i = 0; i <= ServiceNames::kMostNames; ++i) {
    names_.Publish("s" + std::to_string(i), "p", [&](Outcome outcome) { outcomes.push_back(outcome); });
  }
  for (int i = 0; i < 100 && outcomes.size() <= ServiceNames::kMostNames; ++i) Settle();
  ASSERT_EQ(outcomes.size(), ServiceNames::kMostNames + 1);
  EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), Outcome::kDone), static_cast<int>(ServiceNames::kMostNames));
  EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), Outcome::kNoRoom), 1);
  EXPECT_EQ(Unpublish("s7"), Outcome::kDone);
  EXPECT_EQ(Publish("again", "p"), Outcome::kDone) << "a name that was taken back makes room";
}

TEST_F(ServiceNamesTest, SaysNothingOnceItIsGone) {
  bool answered = false;
  {
    ServiceNames gone(&loop_, &store_, "pmix");
    gone.Publish("s", "p", [&](Outcome) { answered = true; });
  }
  Settle();
  EXPECT_FALSE(answered);
}

}  // namespace
}  // namespace cohort::launcher
