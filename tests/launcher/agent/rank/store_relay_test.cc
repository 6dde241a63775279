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
      {.to_rendezvous = [&](const v1::FromAgent& message) { passed.push_back(message); },
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

}  // namespace
}  // namespace cohort::launcher
