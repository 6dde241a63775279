// Nodes and their ranks in the words of PMI_process_mapping.
#include "cohort/launcher/agent/mpi/process_mapping.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>

namespace cohort::launcher {
namespace {

// The node of each rank, as an MPI library reads the text.
std::vector<size_t> Read(const std::string& text) {
  std::vector<size_t> node_of_rank;
  std::istringstream in(text.substr(text.find(',') == std::string::npos ? text.size() : text.find(',')));
  char mark = 0;
  size_t first = 0, nodes = 0, each = 0;
  while (in >> mark >> mark >> first >> mark >> nodes >> mark >> each >> mark) {
    for (size_t node = first; node < first + nodes; ++node) node_of_rank.insert(node_of_rank.end(), each, node);
  }
  return node_of_rank;
}

TEST(ProcessMapping, JoinsNodesThatAreAlike) {
  EXPECT_EQ(ProcessMapping({4}, 1024), "(vector,(0,1,4))");
  EXPECT_EQ(ProcessMapping({4, 4, 4}, 1024), "(vector,(0,3,4))");
  EXPECT_EQ(ProcessMapping({2, 2, 1}, 1024), "(vector,(0,2,2),(2,1,1))");
  EXPECT_EQ(ProcessMapping({2, 0, 2}, 1024), "(vector,(0,1,2),(2,1,2))");
}

TEST(ProcessMapping, GivesUpWhereTheTextWouldBeTooLong) {
  std::vector<size_t> ranks;
  for (size_t i = 0; i < 200; ++i) ranks.push_back(1 + i % 2);
  EXPECT_EQ(ProcessMapping(ranks, 1024), "");
  EXPECT_NE(ProcessMapping(ranks, 4096), "");
}

TEST(ProcessMapping, TellsTheNodeOfEachRank) {
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) {
    std::vector<size_t> ranks(1 + random() % 12), expected;
    for (size_t node = 0; node < ranks.size(); ++node) {
      ranks[node] = random() % 4;
      expected.insert(expected.end(), ranks[node], node);
    }
    EXPECT_EQ(Read(ProcessMapping(ranks, 4096)), expected);
  }
}

}  // namespace
}  // namespace cohort::launcher
