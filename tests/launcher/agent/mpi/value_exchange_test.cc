// Values of several nodes through a store: whole, in order of rounds, and in any order of answers.
#include "cohort/launcher/agent/mpi/value_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

// Nodes and the store between them, whose answers come in an order by seed.
class Exchanges {
 public:
  explicit Exchanges(size_t nodes, unsigned seed) : random_(seed), got_(nodes) {
    for (size_t i = 0; i < nodes; ++i) {
      members_.push_back(i);
      stores_.push_back(std::make_unique<StoredValues>(
          &loop_, ".mpi/1/",
          StoredValues::Callbacks{.ask = [this, i](const v1::VariableRequest& request) { Ask(i, request); },
                                  .on_refused = [this](const std::string& why) { refused_.push_back(why); }}));
      nodes_.push_back(std::make_unique<ValueExchange>(stores_.back().get()));
    }
  }
  void Publish(size_t i, uint64_t round, const std::string& values) { nodes_[i]->Publish({"round", round}, i, values); }
  void Fetch(size_t i, uint64_t round) {
    nodes_[i]->Fetch({"round", round}, members_, i,
                     [this, i](const std::vector<std::string>& values) { got_[i].push_back(values); });
  }
  StoredValues& store(size_t i) { return *stores_[i]; }
  const std::vector<std::vector<std::string>>& got(size_t i) const { return got_[i]; }
  size_t most_under_way() const { return most_under_way_; }
  size_t keys() const { return store_.size(); }
  std::map<std::string, std::string>& variables() { return store_; }
  const std::vector<std::string>& refused() const { return refused_; }
  // Answers whatever the store has.
  void AnswerAll() {
    while (!asked_.empty()) {
      const size_t which = random_() % asked_.size();
      const auto [node, get] = asked_[which];
      asked_.erase(asked_.begin() + static_cast<std::ptrdiff_t>(which));
      --under_way_[node];
      v1::VariableReply reply;
      reply.set_request(get.request());
      if (get.kind() == v1::VariableRequest::KIND_GET) {
        ASSERT_TRUE(store_.contains(get.key())) << get.key();
        reply.set_found(true);
        reply.set_value(store_[get.key()]);
      }
      stores_[node]->OnReply(reply);
    }
  }

 private:
  void Ask(size_t i, const v1::VariableRequest& request) {
    if (request.kind() == v1::VariableRequest::KIND_SET) {
      EXPECT_LE(request.value().size(), 48u << 10) << "the limit of a variable";
      store_[request.key()] = request.value();
    } else if (request.kind() == v1::VariableRequest::KIND_DELETE) {
      EXPECT_EQ(store_.erase(request.key()), 1u) << request.key();
    }
    asked_.emplace_back(i, request);
    most_under_way_ = std::max(most_under_way_, ++under_way_[i]);
  }

  EventLoop loop_;
  std::mt19937 random_;
  std::map<std::string, std::string> store_;
  std::vector<std::pair<size_t, v1::VariableRequest>> asked_;
  std::map<size_t, size_t> under_way_;  // by node: requests that are not answered
  size_t most_under_way_ = 0;
  std::vector<std::string> refused_;
  std::vector<size_t> members_;
  std::vector<std::unique_ptr<StoredValues>> stores_;
  std::vector<std::unique_ptr<ValueExchange>> nodes_;
  std::vector<std::vector<std::vector<std::string>>> got_;
};

TEST(ValueExchange, BringsEachNodeTheValuesOfAllOthers) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const size_t nodes = 2 + random() % 4;
    Exchanges exchanges(nodes, seed);
    for (uint64_t round = 1; round <= 3; ++round) {
      std::vector<std::string> values;
      for (size_t i = 0; i < nodes; ++i) {
        values.push_back(std::string(random() % 200'000, static_cast<char>('a' + i)) + "\n");
        exchanges.Publish(i, round, values.back());
      }
      exchanges.AnswerAll();
      for (size_t i = 0; i < nodes; ++i) exchanges.Fetch(i, round);
      exchanges.AnswerAll();
      for (size_t i = 0; i < nodes; ++i) {
        std::vector<std::string> others = values;
        others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
        ASSERT_EQ(exchanges.got(i).size(), round);
        EXPECT_EQ(exchanges.got(i).back(), others);
      }
    }
  }
}

TEST(ValueExchange, KeepsFewPiecesOfManyUnderWay) {
  constexpr size_t kNodes = 3;
  Exchanges exchanges(kNodes, 1);
  const std::string value(5'000'000, 'v');
  for (size_t i = 0; i < kNodes; ++i) exchanges.Publish(i, 1, value);
  exchanges.AnswerAll();
  for (size_t i = 0; i < kNodes; ++i) exchanges.Fetch(i, 1);
  exchanges.AnswerAll();
  for (size_t i = 0; i < kNodes; ++i) {
    EXPECT_EQ(exchanges.got(i), (std::vector<std::vector<std::string>>{{value, value}}));
  }
  EXPECT_LE(exchanges.most_under_way(), 16 + kNodes) << "of 228 pieces";
}

TEST(ValueExchange, PutsOneKeyWhereValuesAreFew) {
  Exchanges exchanges(2, 1);
  exchanges.Publish(0, 1, std::string(45'000, 'x'));
  EXPECT_EQ(exchanges.keys(), 1u);
  exchanges.Publish(1, 1, "");
  EXPECT_EQ(exchanges.keys(), 2u);
  exchanges.Fetch(0, 1);
  exchanges.AnswerAll();
  EXPECT_EQ(exchanges.got(0).back(), (std::vector<std::string>{""}));
}

TEST(ValueExchange, RemovesTheValuesOfFinishedRounds) {
  Exchanges exchanges(3, 1);
  for (uint64_t round = 1; round <= 200; ++round) {
    for (size_t i = 0; i < 3; ++i) exchanges.Publish(i, round, std::string(i == 0 ? 100'000 : 10, 'x'));
    for (size_t i = 0; i < 3; ++i) exchanges.Fetch(i, round);
    exchanges.AnswerAll();
    EXPECT_LE(exchanges.keys(), 2u * (3 + 1 + 1)) << "those of two rounds";
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(exchanges.got(i).size(), 200u);
}

TEST(ValueExchange, RefusesValuesThatAreNone) {
  const std::vector<std::string> values = {"99999999999999\n", "0\nx", "-1\nx", "2000\n", "", "1", "x\nx", "1 \nx"};
  for (const std::string& value : values) {
    Exchanges exchanges(2, 1);
    exchanges.variables()[".mpi/1/round/1/1/0"] = value;
    exchanges.Fetch(0, 1);
    exchanges.AnswerAll();
    EXPECT_EQ(exchanges.refused().size(), 1u) << value;
    EXPECT_TRUE(exchanges.got(0).empty()) << value;
  }
}

TEST(ValueExchange, IgnoresAnswersThatItHasNotAskedFor) {
  Exchanges exchanges(2, 1);
  v1::VariableReply reply;
  reply.set_request(77);
  reply.set_found(true);
  exchanges.store(0).OnReply(reply);
  EXPECT_TRUE(exchanges.got(0).empty());
}

}  // namespace
}  // namespace cohort::launcher
