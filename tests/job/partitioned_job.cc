// A job on two network namespaces that meet by `dlaunch join`, whose link is cut while it runs (diagnosis_trials.py).
//
//   partitioned_job MILLISECONDS PROGRAM [ARGUMENT]...
//
// Two ranks of PROGRAM run on either side. The link is cut MILLISECONDS after all have printed "ready". The first
// dlaunch's standard error and exit status become this one's. The exit status is 77, with the reason, if no namespaces
// can be made.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/support/linked_namespaces.h"

namespace cohort::launcher {
namespace {

constexpr char kLine[] = "dlaunch join - <<< ";
constexpr std::chrono::seconds kEnd{50};

// The token that the first dlaunch prints; empty when it does not.
std::string TokenOf(DlaunchProcess* first) {
  const auto begin = [first] { return first->err().find(kLine); };
  const bool printed = first->WaitUntil(
      [&] { return begin() != std::string::npos && first->err().find('\n', begin()) != std::string::npos; });
  if (!printed) return "";
  const size_t at = begin() + sizeof kLine - 1;
  return first->err().substr(at, first->err().find('\n', at) - at);
}

pid_t JoinFromTheOtherSide(const testing::LinkedNamespaces& namespaces, std::string token) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  std::string program = ProgramFolder() + "/dlaunch";
  std::string join = "join";
  char* const arguments[] = {program.data(), join.data(), token.data(), nullptr};
  if (!namespaces.Enter(1).ok() || std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(97);
  ::execv(program.c_str(), arguments);
  ::_exit(98);
}

int Run(std::chrono::milliseconds before_the_cut, const std::vector<std::string>& program) {
  const auto made = testing::LinkedNamespaces::Create();
  if (!made.ok()) {
    std::fprintf(stderr, "skipped: a partition: %s\n", std::string(made.status().message()).c_str());
    return 77;
  }
  testing::LinkedNamespaces& namespaces = **made;
  if (!namespaces.Enter(0).ok()) return 1;
  std::vector<std::string> arguments = {"--iface", "10.77.0.0/16", "--nnodes", "2", "--nproc-per-node",
                                        "2",       "--wait",       "60",       "--"};
  arguments.insert(arguments.end(), program.begin(), program.end());
  DlaunchProcess first(arguments);
  const pid_t second = JoinFromTheOtherSide(namespaces, TokenOf(&first));
  const auto ready = [&first] {
    for (const char* const line : {"[0] ready", "[1] ready", "[2] ready", "[3] ready"}) {
      if (first.out().find(line) == std::string::npos) return false;
    }
    return true;
  };
  size_t printed = 0;
  if (first.WaitUntil(ready)) {
    printed = first.err().size();
    std::this_thread::sleep_for(before_the_cut);
    namespaces.settings().cut = true;
  }
  const int status = first.Wait(kEnd);
  std::fputs(first.err().c_str() + printed, stderr);
  ::kill(second, SIGKILL);
  ::waitpid(second, nullptr, 0);
  return status < 0 ? 1 : status;
}

}  // namespace
}  // namespace cohort::launcher

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: partitioned_job MILLISECONDS PROGRAM [ARGUMENT]...\n");
    return 64;
  }
  return cohort::launcher::Run(std::chrono::milliseconds(std::atoi(argv[1])), {argv + 2, argv + argc});
}
