// Gates: what a writer finds behind one that is open, returned, closed, or another process'.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "cohort/comm/transport/shm/gate.h"

namespace cohort::comm::shm {
namespace {

// Whether a word can be written there, as a peer does it.
bool Passes(uint64_t gate) {
  uint64_t word = 0;
  const iovec local{&word, sizeof word};
  const iovec remote{reinterpret_cast<void*>(gate), sizeof word};  // NOLINT: an address
  return process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == sizeof word;
}

TEST(GateTest, OpenGatesAreDistinctPagesThatLetPass) {
  GateField field;
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {  // more than one region
    const uint64_t gate = field.Open();
    ASSERT_NE(gate, 0u);
    EXPECT_EQ(gate % 4096, 0u);
    EXPECT_TRUE(seen.insert(gate).second);
    ASSERT_TRUE(Passes(gate)) << i;
  }
}

TEST(GateTest, AReturnedGateIsUsedAgainAndAClosedOneNever) {
  GateField field;
  uint64_t returned = 0;
  uint64_t closed = 0;
  {
    Gate first(field);
    returned = first.address();
    Gate second(field);
    closed = second.address();
    second.Close();
    EXPECT_EQ(second.address(), 0u);
    EXPECT_FALSE(Passes(closed));
    EXPECT_TRUE(Passes(returned));
  }
  std::set<uint64_t> opened;
  for (int i = 0; i < 1000; ++i) opened.insert(field.Open());
  EXPECT_TRUE(opened.contains(returned));
  EXPECT_FALSE(opened.contains(closed));
}

TEST(GateTest, AClosedGateStaysClosedAfterItsField) {
  uint64_t closed = 0;
  {
    GateField field;
    Gate gate(field);
    closed = gate.address();
    gate.Close();
  }
  EXPECT_FALSE(Passes(closed));
  unsigned char resident = 0;
  // Reserved, so that nothing else comes to lie there.
  EXPECT_EQ(mincore(reinterpret_cast<void*>(closed), 4096, &resident), 0);  // NOLINT: an address
}

TEST(GateTest, AGateDoesNotPassInAnotherProcess) {
  GateField field;
  const uint64_t gate = field.Open();
  ASSERT_TRUE(Passes(gate));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(Passes(gate) ? 1 : 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(GateTest, TwoFieldsAreFarApart) {
  GateField one;
  GateField other;
  const uint64_t a = one.Open();
  const uint64_t b = other.Open();
  EXPECT_GT(a > b ? a - b : b - a, uint64_t{1} << 20);
}

}  // namespace
}  // namespace cohort::comm::shm
