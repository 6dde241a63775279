// A running job at one moment as a page for people: what it takes in all, where, and what every rank is doing. Pure.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

struct JobFrame {
  v1::JobSnapshot job;  // with all nodes and all ranks
  pid_t pid = 0;        // of its dlaunch
  std::chrono::steady_clock::time_point at;
};

struct PageSize {
  size_t rows = 0;     // 0: as many as there are
  size_t columns = 0;  // 0: as wide as the lines are
};

// Some lines about the job, one for each node where there are several, then one for each rank: its CPUs (100 % is one
// of them; since `before`, or since its start where that is null or another process), the memory that its processes
// hold, and its latest collective call. Where ranks wait in calls, the ranks for which they wait are named; where it is
// not known for whom, the one that is longest in its call. Where the page is too short, the last ranks are only
// counted.
//
//   job-00ff00ff00ff00ff  running for 12 s  4 ranks on 2 simulated nodes  dlaunch pid 4711
//     /usr/bin/train --epochs 3
//   ranks: 3 in calls, 1 outside; 398 % CPU, 4.1 GiB of memory
//   3 ranks wait for rank 2, after all_reduce #41 at train.cc:88, for 120 ms
//   node0: ranks 0-1, 199 % CPU, 2.0 GiB
//   node1: ranks 2-3, 199 % CPU, 2.1 GiB
//
//   RANK  NODE   PID   CPU %  MEMORY   DOING
//      0  node0  4713     99  1.0 GiB  in all_reduce #42 at train.cc:88 for 120 ms
std::string FormatJobFrame(const JobFrame& frame, const JobFrame* before, const PageSize& page);

// The ranks of a frame by number; of null none. Valid as long as the frame.
using RanksByNumber = std::unordered_map<uint32_t, const v1::JobRank*>;
RanksByNumber IndexRanks(const JobFrame* frame);

// Hundredths of a CPU that a rank of the frame uses, since `before` where that has the same process, or else since its
// start. `earlier`: IndexRanks(before).
double ShareSince(const JobFrame& frame, const v1::JobRank& rank, const JobFrame* before, const RanksByNumber& earlier);

}  // namespace cohort::launcher
