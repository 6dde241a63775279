// The usual check of RunProcesses' results.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/process_cluster.h"

namespace cohort::testing {

// Expects that every rank returned "" and ended by itself.
inline void ExpectAllWell(const std::vector<RankResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].text, "") << "rank " << rank;
    EXPECT_TRUE(results[rank].exited) << "rank " << rank;
  }
}

}  // namespace cohort::testing
