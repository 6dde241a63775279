// The calls of ranks and of the agent on the job's variables.
#include "cohort/launcher/agent/rank/store_relay.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

TEST(StoreRelay, LetsNoRankChangeTheAgentsVariables) {
  std::vector<v1::FromAgent> passed;
  std::vector<std::pair<RankSocket::PeerId, v1::AgentMessage>> answers;
  StoreRelay relay(
      1, {.to_rendezvous = [&](const v1::FromAgent& message) { passed.push_back(message); },
          .to_rank = [&](RankSocket::PeerId to, const v1::AgentMessage& message) { answers.emplace_back(to, message); },
          .to_agent = {}});
  using Request = v1::VariableRequest;
  Request request;
  request.set_key(".mpi/1/round/1/0/0");
  for (const Request::Kind kind :
       {Request::KIND_SET, Request::KIND_ADD, Request::KIND_COMPARE_SET, Request::KIND_DELETE}) {
    request.set_kind(kind);
    request.set_request(10 + static_cast<uint64_t>(kind));
    relay.OnVariable(7, request);
    ASSERT_FALSE(answers.empty());
    EXPECT_EQ(answers.back().first, 7u);
    EXPECT_EQ(answers.back().second.variable().request(), request.request());
    EXPECT_NE(answers.back().second.variable().error().find("dlaunch's own"), std::string::npos);
  }
  EXPECT_TRUE(passed.empty());
  request.set_kind(Request::KIND_GET);
  relay.OnVariable(7, request);
  request.set_kind(Request::KIND_SET);
  relay.OnVariable(StoreRelay::kAgentItself, request);
  request.set_key("mine");
  relay.OnVariable(7, request);
  EXPECT_EQ(passed.size(), 3u);
  EXPECT_EQ(answers.size(), 4u);
}

TEST(StoreRelay, TakesNoAnswerToACallOfAnotherEpoch) {
  v1::FromAgent asked;
  std::vector<v1::AgentMessage> answers;
  const StoreRelay::Callbacks callbacks = {
      .to_rendezvous = [&](const v1::FromAgent& message) { asked = message; },
      .to_rank = [&](RankSocket::PeerId, const v1::AgentMessage& message) { answers.push_back(message); },
      .to_agent = {}};
  v1::VariableRequest request;
  request.set_kind(v1::VariableRequest::KIND_GET);
  request.set_key("mine");
  request.set_request(1);
  StoreRelay before(1, callbacks);
  before.OnVariable(7, request);
  v1::VariableReply late;
  late.set_request(asked.variable().request());
  StoreRelay relay(2, callbacks);
  relay.OnVariable(7, request);
  relay.OnVariableReply(late);
  EXPECT_TRUE(answers.empty()) << "the rank would take it for its own variable";
  v1::VariableReply own;
  own.set_request(asked.variable().request());
  relay.OnVariableReply(own);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].variable().request(), 1u);
}

}  // namespace
}  // namespace cohort::launcher
