// Numbers that callers in C hold: a wrong one is always detected.
#include "cohort/comm/c/handle_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace cohort::comm::c {
namespace {

using Table = HandleTable<std::unique_ptr<int>>;

Lookup Look(Table& table, uint64_t number) {
  Table::Held held;
  return table.Hold(number, &held);
}

TEST(HandleTableTest, AFreedNumberStaysFreedWhenItsPlaceIsUsedAgain) {
  Table table(HandleKind::kWork);
  std::vector<uint64_t> freed;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t number = table.Add(std::make_unique<int>(i));
    Table::Held held;
    ASSERT_EQ(table.Hold(number, &held), Lookup::kFound);
    EXPECT_EQ(**held, i);
    EXPECT_EQ(*held.Take(), i);
    freed.push_back(number);
  }
  EXPECT_EQ(static_cast<uint32_t>(freed.front()), static_cast<uint32_t>(freed.back())) << "one place serves all";
  for (const uint64_t number : freed) EXPECT_EQ(Look(table, number), Lookup::kFreed);
}

TEST(HandleTableTest, NumbersThatWereNeverGivenOutAreNotFound) {
  Table table(HandleKind::kWork);
  Table others(HandleKind::kWindow);
  const uint64_t number = table.Add(nullptr);
  EXPECT_EQ(Look(table, 0), Lookup::kNull);
  EXPECT_EQ(Look(table, others.Add(nullptr)), Lookup::kOtherKind);
  EXPECT_EQ(Look(table, number + 1), Lookup::kNeverMade);                    // a place without an object
  EXPECT_EQ(Look(table, number + (uint64_t{1} << 32)), Lookup::kNeverMade);  // a generation to come
  std::mt19937_64 random(7);
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t junk = random();
    ASSERT_NE(junk, number);
    EXPECT_NE(Look(table, junk), Lookup::kFound) << junk;
  }
  EXPECT_EQ(Look(table, number), Lookup::kFound);
}

TEST(HandleTableTest, AReservedPlaceIsNoHandleUntilItIsFilled) {
  Table table(HandleKind::kWork);
  uint64_t number = 0;
  {
    Table::Reserved reserved;
    Table::Reserved given_back;
    ASSERT_TRUE(table.Reserve(&reserved) && table.Reserve(&given_back));
    number = reserved.Fill(std::make_unique<int>(4));
    EXPECT_EQ(Look(table, number), Lookup::kFound);
    EXPECT_EQ(Look(table, number + 1), Lookup::kNeverMade);
  }
  EXPECT_EQ(table.Add(nullptr), number + 1) << "the place that was given back";
}

TEST(HandleTableTest, ASecondUserIsRefusedAndAPeekIsNot) {
  Table table(HandleKind::kWork);
  const uint64_t number = table.Add(std::make_unique<int>(3));
  int seen = 0;
  const auto copy = [&](const std::unique_ptr<int>& object) { seen = *object; };
  {
    Table::Held held;
    ASSERT_EQ(table.Hold(number, &held), Lookup::kFound);
    EXPECT_EQ(Look(table, number), Lookup::kBusy);
    EXPECT_EQ(table.Peek(number, copy), Lookup::kFound);
    EXPECT_EQ(seen, 3);
  }
  Table::Held held;
  ASSERT_EQ(table.Hold(number, &held), Lookup::kFound);
  held.Take();
  EXPECT_EQ(table.Peek(number, copy), Lookup::kFreed);
}

TEST(HandleTableTest, ThreadsThatUseOneNumberExcludeEachOther) {
  Table table(HandleKind::kWork);
  const uint64_t shared = table.Add(std::make_unique<int>(0));
  std::atomic<int> used{0};
  const auto use = [&] {
    for (int i = 0; i < 20'000; ++i) {
      {
        Table::Held held;
        if (table.Hold(shared, &held) == Lookup::kFound) {
          ++**held;
          ++used;
        }
      }
      Table::Held own;
      ASSERT_EQ(table.Hold(table.Add(std::make_unique<int>(i)), &own), Lookup::kFound);
      EXPECT_EQ(*own.Take(), i);
    }
  };
  std::thread other(use);
  use();
  other.join();
  Table::Held held;
  ASSERT_EQ(table.Hold(shared, &held), Lookup::kFound);
  EXPECT_EQ(**held, used.load());
}

TEST(HandleTableTest, AFullTableGivesOutNothing) {
  HandleTable<char> table(HandleKind::kWork);
  for (int i = 0; i < 1 << 20; ++i) ASSERT_NE(table.Add('x'), 0u);
  EXPECT_EQ(table.Add('x'), 0u);
}

}  // namespace
}  // namespace cohort::comm::c
