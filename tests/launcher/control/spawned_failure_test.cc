// Failures of processes that a rank had spawned (MPI_Comm_spawn) before its end in order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "cohort/launcher/control/rendezvous.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

v1::RankExit Ended(uint32_t rank, int code, const std::string& what) {
  v1::RankExit exit = Exited(rank, code);
  exit.set_spawned_failure(what);
  return exit;
}

TEST(SpawnedFailure, ASpawnedProcessThatFailsAfterItsRankFailsTheJob) {
  for (const char* on_failure : {"end", "continue"}) {
    Driver job(2, 2, on_failure);
    job.JoinAll();
    for (uint32_t rank : {0u, 1u}) job.Exit(Exited(rank, 0));
    job.Exit(Ended(0, 3, "process 1 of 2 that rank 0 has spawned (./w, pid 7) exited with code 3"));
    EXPECT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kRanksLost), 1) << "as for any failure";
    job.Pass(seconds(1));
    EXPECT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kStop), std::string(on_failure) == "end" ? 1 : 0);
    for (uint32_t rank : {2u, 3u}) job.Exit(Exited(rank, 0));
    for (uint32_t node : {0u, 1u}) job.Done(node);
    ASSERT_TRUE(job.report().has_value());
    EXPECT_EQ(job.report()->exit_code(), 3);
    EXPECT_EQ(job.report()->culprit_rank(), 0);
    EXPECT_EQ(
        job.report()->headline(),
        "rank 0 (node0, pid 1000) ended well, but process 1 of 2 that rank 0 has spawned (./w, pid 7) exited with "
        "code 3");
  }
}

TEST(SpawnedFailure, NothingElseIsAddedToTheEndOfARank) {
  Driver job(1, 2);
  job.JoinAll();
  job.Exit(Exited(0, 0));
  job.Exit(Exited(0, 5));
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kRanksLost), 0);
  job.Exit(Exited(1, 4));
  job.Exit(Ended(1, 9, "another"));
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 4) << "a rank that had failed keeps its cause";
  EXPECT_THAT(job.report()->headline(), Not(HasSubstr("another")));
}

}  // namespace
}  // namespace cohort::launcher
