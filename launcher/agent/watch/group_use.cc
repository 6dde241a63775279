#include "cohort/launcher/agent/watch/group_use.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "cohort/launcher/agent/watch/process_state.h"

namespace cohort::launcher {
namespace {

// Since boot, sleep included, as /proc counts the starts of processes.
uint64_t TicksSinceBoot(uint64_t ticks_per_second) {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * ticks_per_second +
         static_cast<uint64_t>(now.tv_nsec) * ticks_per_second / 1'000'000'000;
}

}  // namespace

std::unordered_map<pid_t, GroupUse> LookAtGroups(const std::vector<pid_t>& groups) {
  const auto ticks_per_second = static_cast<uint64_t>(std::max(1l, ::sysconf(_SC_CLK_TCK)));
  const uint64_t now = TicksSinceBoot(ticks_per_second);
  std::unordered_map<pid_t, GroupUse> uses;
  for (const pid_t pid : ListProcesses()) {
    const auto state = ReadProcessState(pid);
    if (!state || state->state == 'Z' || std::find(groups.begin(), groups.end(), state->group) == groups.end())
      continue;
    GroupUse& use = uses[state->group];
    ++use.processes;
    use.cpu_ms += state->cpu_ticks * 1000 / ticks_per_second;
    use.resident_bytes += static_cast<uint64_t>(std::max(0l, state->resident_bytes));
    if (pid != state->group) continue;
    use.age_ms = (now - std::min<uint64_t>(now, state->start_time)) * 1000 / ticks_per_second;
    use.stopped = state->state == 'T';
  }
  return uses;
}

}  // namespace cohort::launcher
