#include "cohort/launcher/join/early_notices.h"

#include <csignal>
#include <ctime>
#include <string>

#include "cohort/launcher/base/say.h"

namespace cohort::launcher {
namespace {

sigset_t Notices() {
  sigset_t notices;
  ::sigemptyset(&notices);
  ::sigaddset(&notices, SIGUSR1);
  ::sigaddset(&notices, SIGUSR2);
  return notices;
}

}  // namespace

void HoldNotices() {
  const sigset_t notices = Notices();
  ::sigprocmask(SIG_BLOCK, &notices, nullptr);
}

void DropNotices() {
  const sigset_t notices = Notices();
  const timespec now{};
  for (int signal = 0; (signal = ::sigtimedwait(&notices, nullptr, &now)) > 0;) {
    Say(std::string(NameOfNotice(signal)) + " came before the job had started, and there was nobody to tell");
  }
}

const char* NameOfNotice(int signal) { return signal == SIGUSR1 ? "SIGUSR1" : "SIGUSR2"; }

}  // namespace cohort::launcher
