// The last words of a job that failed, for people: root cause first.
#pragma once

#include <cstddef>
#include <string>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

inline constexpr int kNewestLines = 5;

struct DiagnosisOptions {
  bool colour = false;             // the output is a terminal
  size_t last_lines = 20;          // of the culprit's log, at the most
  size_t others = 32;              // lines on other ranks, at the most
  size_t places = 4;               // of ranks when they were told to end, at the most
  bool told = false;               // the headline has been told before: what else is known of it follows
  bool lines_stand_above = false;  // the culprit's kNewestLines last lines are the latest that the user sees
  bool cpu_time_limited = false;   // ulimit -t is set here, and ranks inherit it
};

// The text to print when a job has failed, lines ended by '\n'; empty when the job succeeded. Pure. Text that came from
// ranks or other hosts is shown with control characters escaped, so that it can't steer a terminal. Like
//
//   dlaunch: rank 3 (node1, pid 4711) killed by SIGKILL while in all_reduce #42 at train.cc:88 for 10 ms
//     dlaunch did not send that signal: most often it is the kernel, out of memory (see dmesg), or a person
//     last lines of rank 3 (log/rank3.err):
//       | step 41 loss 0.31
//     when they were told to end:
//       ranks 0 and 1: /x/train.py:30 in step
//         called from /x/train.py:44 in main
//     the others:
//       rank 0 (node0): in all_reduce #42 at train.cc:88 for 120 ms
std::string FormatReport(const v1::JobReport& report, const DiagnosisOptions& options = {});

}  // namespace cohort::launcher
