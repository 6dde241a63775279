// Words for what happens to ranks, as people read them in errors and in the final report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// "120 ms", "4.5 s".
std::string DescribeDuration(uint64_t milliseconds);

// "SIGKILL"; "signal 77" for one without a name.
std::string SignalName(int signal);

// "rank 3", "ranks 0-2 and 5"; numbers in any order, "no rank" for none.
std::string RankNames(std::vector<uint32_t> ranks);

// "rank 3 (node1, pid 4711)"; without the pid when it is 0.
std::string NameRank(uint32_t rank, const std::string& node, int32_t pid);

// Whether the rank ended in a way that counts as failure of its own: by a signal or with a status that we did not
// cause, never started, lost with its agent, or killed by its agent for a reason given in `error` (it was frozen). Also
// where it has ended well and a process that it had spawned has failed.
bool IsFailure(const v1::RankExit& exit);

// The signal for which the rank's exit code stands where it is a wrapper's: a shell gives 128 + n when its program was
// killed, a Python script that ends with subprocess' return code 256 - n. 0: none. A program may have chosen the code
// itself, so it is only likely.
int WrappersSignal(const v1::RankExit& exit);

// The signal that killed the rank, else WrappersSignal; 0: none.
int LikelySignal(const v1::RankExit& exit);

// "killed by SIGKILL", "exited with code 1", "could not be started: ...", "lost: the agent of node1 is gone".
std::string DescribeEnd(const v1::RankExit& exit);

// DescribeEnd, and the exception that Python has printed for it: "exited with code 1: ValueError: no tensor". Without
// one, the rank's last words: `exited with code 6; its last line: "no licence file"`.
std::string DescribeFailure(const v1::RankExit& exit);

// `; its last line: "no licence file"`, as DescribeFailure has it; empty without words.
std::string LastLine(const std::string& words);

// The exit status that a shell would report: 128 + n for signal n, 127 for a rank that could not be started, 125 for
// one that was lost with its agent.
int ExitCode(const v1::RankExit& exit);

// "group 00000000000000ff", as errors of calls name it.
std::string GroupName(uint64_t group);

// "all_reduce #42 at train.cc:88", with `name_group` "all_reduce #42 of group 00000000000000ff at train.cc:88".
std::string NameCall(const v1::CallState& call, bool name_group = false);

// "in all_reduce #42 at train.cc:88 for 120 ms", "after all_reduce #42 at train.cc:88 (done 120 ms ago)", "in no
// collective call"; "in no call of Cohort, which it has not joined" for a rank that uses no Cohort yet. Give
// `name_group` where calls of several groups stand side by side, since each group numbers its own.
std::string DescribeCall(const v1::CallState& call, bool name_group = false);

// DescribeCall of the call that a rank was in when it ended: "after all_reduce #42 at train.cc:88 (done 120 ms before
// its end)".
std::string DescribeLastCall(const v1::RankExit& exit, bool name_group = false);

// "all_reduce(sum, float32, 1024) at train.cc:88".
std::string CallAndSite(const v1::CallState& call);

}  // namespace cohort::launcher
