#include "cohort/launcher/machine/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

NodeResources MakeNode(const std::string& name, int devices, int cpus, v1::Device::Kind kind = v1::Device::KIND_CUDA) {
  NodeResources node{.name = name, .devices = {}, .cpus = std::vector<int>(cpus)};
  std::iota(node.cpus.begin(), node.cpus.end(), 0);
  for (int i = 0; i < devices; ++i) {
    v1::Device device;
    device.set_kind(kind);
    device.set_node_index(i);
    device.set_id("id" + std::to_string(i));
    node.devices.push_back(device);
  }
  return node;
}

std::vector<int> DevicesOf(const v1::RankPlacement& rank) {
  std::vector<int> devices;
  for (const v1::Device& device : rank.devices()) devices.push_back(static_cast<int>(device.node_index()));
  return devices;
}

TEST(Placement, EightGpusWithTwoPerRankMakeFourRanks) {
  const auto placement =
      Place({MakeNode("a", 8, 16), MakeNode("b", 8, 16)}, {.ranks_per_node = std::nullopt, .devices_per_rank = 2});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(placement->world_size, 8);
  EXPECT_EQ(placement->devices_per_rank, 2);
  const v1::NodePlacement& second = placement->nodes[1];
  EXPECT_EQ(second.name(), "b");
  for (int local = 0; local < 4; ++local) {
    EXPECT_EQ(second.ranks(local).rank(), 4u + local);
    EXPECT_EQ(DevicesOf(second.ranks(local)), (std::vector<int>{2 * local, 2 * local + 1}));
    EXPECT_EQ(second.ranks(local).devices(1).index(), 1u);
  }
  EXPECT_EQ(second.ranks(3).cpus(), "12-15");
}

TEST(Placement, LeftOverGpusAreNamed) {
  const auto placement = Place({MakeNode("a", 7, 4)}, {.ranks_per_node = std::nullopt, .devices_per_rank = 2});
  ASSERT_FALSE(placement.ok());
  EXPECT_NE(std::string(placement.status().message()).find("GPU 6 (id6)"), std::string::npos) << placement.status();
  EXPECT_TRUE(Place({MakeNode("a", 7, 4)}, {.ranks_per_node = 3, .devices_per_rank = 2}).ok());
}

TEST(Placement, DefaultsFollowTheGivenRanksAndGpus) {
  const auto none = Place({MakeNode("a", 0, 4)}, {});
  EXPECT_EQ(none->world_size, 1);
  EXPECT_EQ(none->devices_per_rank, 0);
  const auto one_each = Place({MakeNode("a", 4, 4)}, {});
  EXPECT_EQ(one_each->world_size, 4);
  EXPECT_EQ(one_each->devices_per_rank, 1);
  // As under torchrun: all ranks see all GPUs.
  const auto ranks_only = Place({MakeNode("a", 4, 4)}, {.ranks_per_node = 2, .devices_per_rank = std::nullopt});
  EXPECT_EQ(ranks_only->world_size, 2);
  EXPECT_EQ(ranks_only->devices_per_rank, 0);
  const auto simulated =
      Place({MakeNode("a", 4, 4, v1::Device::KIND_SIMULATED)}, {.ranks_per_node = 2, .devices_per_rank = std::nullopt});
  EXPECT_EQ(simulated->devices_per_rank, 1);
}

TEST(Placement, RefusesPlacementsThatCanNotWork) {
  EXPECT_FALSE(Place({}, {}).ok());
  EXPECT_FALSE(Place({MakeNode("a", 0, 4)}, {.ranks_per_node = 2, .devices_per_rank = 1}).ok());
  EXPECT_FALSE(Place({MakeNode("a", 4, 4)}, {.ranks_per_node = 3, .devices_per_rank = 2}).ok());
  EXPECT_FALSE(Place({MakeNode("a", 4, 4)}, {.ranks_per_node = std::nullopt, .devices_per_rank = 5}).ok());
  EXPECT_FALSE(Place({MakeNode("a", 4, 4), MakeNode("b", 0, 4)}, {}).ok()) << "nodes of two kinds";
}

// For any resources and options: ranks counted through, no device twice, groups whole, CPUs the node's own, disjoint
// unless shared by all.
TEST(Placement, PlacementsHoldTheirPropertiesForAnyResources) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int placed = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<NodeResources> nodes;
    const int per_rank = 1 + static_cast<int>(random() % 4);
    const int groups = 1 + static_cast<int>(random() % 4);
    const int count = 1 + static_cast<int>(random() % 5);
    for (int i = 0; i < count; ++i) {
      const bool odd = random() % 16 == 0;
      nodes.push_back(MakeNode("n" + std::to_string(i), groups * per_rank + (odd ? 1 : 0), 1 + random() % 20));
    }
    PlacementOptions options;
    if (random() % 4 != 0) options.devices_per_rank = per_rank;
    if (random() % 3 == 0) options.ranks_per_node = 1 + static_cast<int>(random() % 5);
    const auto placement = Place(nodes, options);
    if (!placement.ok()) {
      EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++placed;
    uint32_t next = 0;
    for (size_t n = 0; n < nodes.size(); ++n) {
      std::set<uint32_t> devices;
      std::set<int> cpus;
      size_t cpu_uses = 0;
      const int ranks = placement->nodes[n].ranks_size();
      for (const v1::RankPlacement& rank : placement->nodes[n].ranks()) {
        EXPECT_EQ(rank.rank(), next++);
        EXPECT_EQ(rank.devices_size(), placement->devices_per_rank);
        for (const v1::Device& device : rank.devices()) EXPECT_TRUE(devices.insert(device.node_index()).second);
        const auto own = ParseCpuList(rank.cpus());
        ASSERT_TRUE(own.ok());
        EXPECT_FALSE(own->empty());
        cpu_uses += own->size();
        cpus.insert(own->begin(), own->end());
      }
      EXPECT_EQ(cpus.size(), nodes[n].cpus.size()) << "every CPU is used";
      EXPECT_EQ(cpu_uses, nodes[n].cpus.size() * (nodes[n].cpus.size() < static_cast<size_t>(ranks) ? ranks : 1));
    }
    EXPECT_EQ(static_cast<int>(next), placement->world_size);
  }
  EXPECT_GT(placed, 500);
}

std::vector<std::string> CpusOf(const std::vector<NodeResources>& nodes, int ranks, Bind bind) {
  const auto placement = Place(nodes, {.ranks_per_node = ranks, .devices_per_rank = std::nullopt, .bind = bind});
  EXPECT_TRUE(placement.ok()) << placement.status();
  std::vector<std::string> cpus;
  for (const v1::RankPlacement& rank : placement->nodes[0].ranks()) cpus.push_back(rank.cpus());
  return cpus;
}

// Two packages of two cores with two threads each; the kernel numbers second threads after all first ones.
NodeResources MakeTwoPackages() {
  NodeResources node{.name = "a", .devices = {}, .cpus = {0, 4, 1, 5, 2, 6, 3, 7}};
  node.cores = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  node.numa_nodes = {{0, 4, 1, 5}, {2, 6, 3, 7}};
  return node;
}

TEST(Binding, CoresAreSplitWhole) {
  using List = std::vector<std::string>;
  const NodeResources node = MakeTwoPackages();
  EXPECT_EQ(CpusOf({node}, 1, Bind::kCore), (List{"0-7"}));
  EXPECT_EQ(CpusOf({node}, 2, Bind::kCore), (List{"0-1,4-5", "2-3,6-7"}));
  EXPECT_EQ(CpusOf({node}, 3, Bind::kCore), (List{"0,4", "1,5", "2-3,6-7"}));
  EXPECT_EQ(CpusOf({node}, 4, Bind::kCore), (List{"0,4", "1,5", "2,6", "3,7"}));
  EXPECT_EQ(CpusOf({node}, 8, Bind::kCore), (List{"0", "4", "1", "5", "2", "6", "3", "7"}));
  EXPECT_EQ(CpusOf({node}, 9, Bind::kCore), List(9, "0-7"));
}

TEST(Binding, NumaNodesAreSharedOrSplitWhole) {
  using List = std::vector<std::string>;
  const NodeResources node = MakeTwoPackages();
  EXPECT_EQ(CpusOf({node}, 1, Bind::kNuma), (List{"0-7"}));
  EXPECT_EQ(CpusOf({node}, 2, Bind::kNuma), (List{"0-1,4-5", "2-3,6-7"}));
  EXPECT_EQ(CpusOf({node}, 4, Bind::kNuma), (List{"0-1,4-5", "0-1,4-5", "2-3,6-7", "2-3,6-7"}));
  EXPECT_EQ(CpusOf({node}, 3, Bind::kNuma), (List{"0-1,4-5", "0-1,4-5", "2-3,6-7"}));
  EXPECT_EQ(CpusOf({MakeNode("a", 0, 4)}, 2, Bind::kNuma), List(2, "0-3")) << "a machine that reports none";
  EXPECT_EQ(CpusOf({node}, 2, Bind::kNone), List(2, ""));
}

TEST(CpuList, FormatsAndParsesListsOfCpus) {
  EXPECT_EQ(FormatCpuList({}), "");
  EXPECT_EQ(FormatCpuList({8, 0, 1, 3, 2, 1}), "0-3,8");
  EXPECT_EQ(*ParseCpuList("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_TRUE(ParseCpuList("")->empty());
  for (const char* bad : {",", "1,", "a", "3-1", "-1", "1-", "0-99999999999", "65536", "1 2", "1--2"}) {
    EXPECT_FALSE(ParseCpuList(bad).ok()) << bad;
  }
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::set<int> cpus;
    for (int i = random() % 40; i > 0; --i) cpus.insert(static_cast<int>(random() % 64));
    const std::vector<int> list(cpus.begin(), cpus.end());
    EXPECT_EQ(*ParseCpuList(FormatCpuList(list)), list);
  }
}

TEST(Placement, TableShowsRanksGroupsAndCpus) {
  const auto placement =
      Place({MakeNode("alpha", 4, 4, v1::Device::KIND_CUDA)}, {.ranks_per_node = std::nullopt, .devices_per_rank = 2});
  EXPECT_EQ(FormatPlacement(*placement),
            "node  name   rank  local  group 0  group 1  CPUs\n"
            "0     alpha  0     0      GPU 0    GPU 1    0-1\n"
            "0     alpha  1     1      GPU 2    GPU 3    2-3\n");
}

std::vector<int> RanksOf(const std::vector<NodeResources>& nodes, const PlacementOptions& options) {
  const auto placement = Place(nodes, options);
  if (!placement.ok()) return {};
  std::vector<int> ranks;
  for (const v1::NodePlacement& node : placement->nodes) ranks.push_back(node.ranks_size());
  return ranks;
}

TEST(Placement, RanksOfTheWholeJobFillNodesThatHaveALimit) {
  const std::vector<NodeResources> cpus = {MakeNode("a", 0, 8), MakeNode("b", 0, 8), MakeNode("c", 0, 8)};
  EXPECT_EQ(RanksOf(cpus, {.ranks = 7, .ranks_per_node = {}, .devices_per_rank = {}}), (std::vector<int>{3, 2, 2}));
  EXPECT_EQ(RanksOf(cpus, {.ranks = 2, .ranks_per_node = {}, .devices_per_rank = {}}), (std::vector<int>{1, 1}));
  EXPECT_EQ(RanksOf(cpus, {.ranks = 5, .ranks_per_node = 4, .devices_per_rank = {}}), (std::vector<int>{4, 1}));
  EXPECT_EQ(RanksOf(cpus, {.ranks = 13, .ranks_per_node = 4, .devices_per_rank = {}}), std::vector<int>());
  std::vector<NodeResources> slots = cpus;
  slots[0].slots = 2;
  slots[2].slots = 4;
  EXPECT_EQ(RanksOf(slots, {.ranks = 6, .ranks_per_node = {}, .devices_per_rank = {}}), (std::vector<int>{2, 1, 3}));
  const std::vector<NodeResources> gpus = {MakeNode("a", 4, 8), MakeNode("b", 4, 8)};
  EXPECT_EQ(RanksOf(gpus, {.ranks = 5, .ranks_per_node = {}, .devices_per_rank = {}}), (std::vector<int>{4, 1}));
  EXPECT_EQ(RanksOf(gpus, {.ranks = 3, .ranks_per_node = {}, .devices_per_rank = 2}), (std::vector<int>{2, 1}));
  EXPECT_EQ(RanksOf(gpus, {.ranks = 9, .ranks_per_node = {}, .devices_per_rank = {}}), std::vector<int>());
}

TEST(Placement, TheAllocationsTasksAreRanksWhereNothingElseSaysSo) {
  std::vector<NodeResources> nodes = {MakeNode("a", 0, 8), MakeNode("b", 0, 8)};
  nodes[0].tasks = 4;
  nodes[1].tasks = 2;
  EXPECT_EQ(RanksOf(nodes, {.ranks_per_node = {}, .devices_per_rank = {}}), (std::vector<int>{4, 2}));
  EXPECT_EQ(RanksOf(nodes, {.ranks = 6, .ranks_per_node = {}, .devices_per_rank = {}}), (std::vector<int>{4, 2}));
  EXPECT_EQ(RanksOf(nodes, {.ranks = 4, .ranks_per_node = {}, .devices_per_rank = {}}), (std::vector<int>{2, 2}));
  EXPECT_EQ(RanksOf(nodes, {.ranks = 9, .ranks_per_node = {}, .devices_per_rank = {}}), (std::vector<int>{5, 4}))
      << "more than tasks: they are no limit";
  EXPECT_EQ(RanksOf(nodes, {.ranks_per_node = 8, .devices_per_rank = {}}), (std::vector<int>{8, 8}));
  nodes[0].devices = MakeNode("a", 2, 8).devices;
  nodes[1].devices = MakeNode("b", 2, 8).devices;
  EXPECT_EQ(RanksOf(nodes, {.ranks_per_node = {}, .devices_per_rank = {}}), (std::vector<int>{2, 2})) << "one a GPU";
}

TEST(Placement, RanksOfTheWholeJobAreAllPlacedOrRefused) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::vector<NodeResources> nodes;
    int limit = 0;
    const bool limited = random() % 2 == 0;
    for (unsigned n = 1 + random() % 6; n > 0; --n) {
      nodes.push_back(MakeNode("n" + std::to_string(n), 0, 1 + static_cast<int>(random() % 9)));
      if (limited) nodes.back().slots = 1 + static_cast<int>(random() % 5);
      limit += nodes.back().slots.value_or(0);
    }
    const int wanted = 1 + static_cast<int>(random() % 20);
    const auto placement = Place(nodes, {.ranks = wanted, .ranks_per_node = {}, .devices_per_rank = {}});
    ASSERT_EQ(placement.ok(), !limited || wanted <= limit) << placement.status();
    if (!placement.ok()) continue;
    EXPECT_EQ(placement->world_size, wanted);
    int next = 0;
    for (size_t n = 0; n < placement->nodes.size(); ++n) {
      EXPECT_GT(placement->nodes[n].ranks_size(), 0);
      if (nodes[n].slots) {
        EXPECT_LE(placement->nodes[n].ranks_size(), *nodes[n].slots);
      }
      for (const v1::RankPlacement& rank : placement->nodes[n].ranks()) EXPECT_EQ(rank.rank(), next++);
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
