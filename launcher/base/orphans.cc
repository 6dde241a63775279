#include "cohort/launcher/base/orphans.h"

#include <sys/wait.h>

namespace cohort::launcher {

void ReapOrphans(const std::function<bool(pid_t)>& is_known) {
  for (siginfo_t info{}; ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid > 0; info = {}) {
    if (is_known(info.si_pid)) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace cohort::launcher
