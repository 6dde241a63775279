#include "cohort/launcher/agent/watch/process_name.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace cohort::launcher {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Runs in a copy, since it writes over the arguments of this process.
template <typename Check>
void ExpectInCopy(const Check& check) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(check() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(ProcessName, LeavesTheCommandLineWithoutRememberArguments) {
  ExpectInCopy([] {
    const std::string own = ReadAll("/proc/self/cmdline");
    NameProcess("short", std::string_view("a\0b", 3));
    return ReadAll("/proc/self/cmdline") == own && ReadAll("/proc/self/comm") == "short\n";
  });
}

TEST(ProcessName, MovesTheCommandLineWhereTheOldOneIsShorter) {
  const std::string environment = ReadAll("/proc/self/environ");
  ASSERT_FALSE(environment.empty());
  ExpectInCopy([&environment] {
    // As if the arguments were this one alone, which no name fits into.
    char empty[] = "";
    char* arguments[] = {empty, nullptr};
    RememberArguments(1, arguments);
    const std::string own = ReadAll("/proc/self/cmdline");
    const std::string name("dlaunch\0agent\0--node=0", 22);
    NameProcess("dlaunch", name);
    const std::string moved = ReadAll("/proc/self/cmdline");
    if (moved == own) return true;  // no CONFIG_CHECKPOINT_RESTORE
    if (moved != name + '\0' || ReadAll("/proc/self/environ") != environment) return false;
    NameProcess("watch", std::string_view("dlaunch\0sentinel", 16));
    return ReadAll("/proc/self/cmdline") == std::string("dlaunch\0sentinel", 16) + std::string(7, '\0');
  });
}

}  // namespace
}  // namespace cohort::launcher
