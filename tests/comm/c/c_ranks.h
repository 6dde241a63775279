// Ranks as processes that have a world of cohort.h.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cohort/comm/c/cohort.h"
#include "cohort/comm/c/objects.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {

// "" for COHORT_OK.
inline std::string Explained(cohort_status status) {
  return status == COHORT_OK ? "" : std::string(cohort_status_name(status)) + ": " + cohort_last_error();
}

// A handle of the rank's runtime.
inline cohort_status GiveRuntime(const ProcessRank& rank, cohort_runtime* handle) {
  auto membership = std::make_shared<comm::c::Membership>();
  membership->runtime = std::shared_ptr<runtime::Runtime>(rank.runtime, [](runtime::Runtime*) {});
  return comm::c::Give<cohort_runtime>("init", {std::move(membership)}, handle);
}

// Runs `program` on `ranks` ranks, whose results must be "".
inline void OnRanks(int ranks, const std::function<std::string(ProcessRank&, cohort_runtime, cohort_comm)>& program) {
  ProcessClusterOptions options;
  options.ranks = ranks;
  for (const RankResult& result : RunProcesses(options, [&](ProcessRank& rank) -> std::string {
         cohort_runtime handle = nullptr;
         cohort_comm world = nullptr;
         if (GiveRuntime(rank, &handle) != COHORT_OK) return cohort_last_error();
         if (cohort_world(handle, nullptr, &world) != COHORT_OK) return cohort_last_error();
         std::string wrong = program(rank, handle, world);
         (void)cohort_comm_free(world);
         return wrong;
       })) {
    EXPECT_EQ(result.text, "");
    EXPECT_EQ(result.signal, 0);
    EXPECT_FALSE(result.hung);
  }
}

}  // namespace cohort::testing
