// The processes of a node's ranks, as /proc shows them: whatever a rank's first process has started, also what left its
// group, its session or its parent.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {

// A pipe, by device and inode; zeros: none.
using PipeId = std::pair<uint64_t, uint64_t>;

// A living process of a rank.
struct RankMember {
  pid_t pid = 0;
  pid_t parent = 0;
  unsigned long long start_time = 0;   // with the pid it names the process for good
  std::string program = {};            // the name of its executable: "bash", "python3.11"
  uint64_t caught = 0;                 // signals that it handles or keeps for itself; SIGHUP is bit 0
  uint64_t ignored = 0;                // by a process in wait() blocked ones as well
  bool waits = false;                  // its only thread is in wait()
  int terminal = 0;                    // ProcessState::terminal
  PipeId input = {};                   // its standard input
  std::array<PipeId, 2> outputs = {};  // its standard output and error

  bool Catches(int signal) const { return (caught >> (signal - 1) & 1) != 0; }
  bool Ignores(int signal) const { return (ignored >> (signal - 1) & 1) != 0; }
};
using RankMembers = std::vector<RankMember>;

// The pipe of a descriptor of this process.
PipeId PipeOf(int fd);
// Nothing when there is no such process, or it is about to end.
std::optional<RankMember> ReadMember(pid_t pid);

// SIGKILL and others, only to that very process: its number may be another's by now.
void SignalMember(const RankMember& member, int signal);

// Looks for the processes of all ranks of an agent. A pass over /proc costs 1 us for each process of the machine, and
// 50 us for each of a rank, so that one pass serves all ranks for a while.
class RankMemberSearch {
 public:
  using Clock = std::chrono::steady_clock;
  // A rank's first process, also when it has gone, and the pipe that is the rank's input: reading it is no filter's
  // mark, and members are shown without it.
  struct Leader {
    pid_t pid = 0;
    PipeId input = {};
  };

  // `mark` (limit_mark.h) is what the ranks' processes carry; 0: nothing, and a process belongs to a rank by its group
  // or its parent. `leaders`: by local rank.
  void Begin(rlim_t mark, std::vector<Leader> leaders);
  // By a pass that is no older than `age`.
  const RankMembers& Of(size_t local_rank, std::chrono::milliseconds age = std::chrono::milliseconds(0));

 private:
  void Look();
  void LookByMark();
  void LookByGroup();
  void Add(size_t local_rank, pid_t pid);

  rlim_t mark_ = 0;
  std::vector<Leader> leaders_;
  std::vector<RankMembers> found_;
  std::optional<Clock::time_point> looked_at_;
};

}  // namespace cohort::launcher
