#include "cohort/launcher/agent/evidence/unwinder.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>

#include "cohort/launcher/agent/evidence/thread_snapshot.h"
#include "cohort/launcher/agent/evidence/unwound_stacks.h"

namespace cohort::launcher {
namespace {

constexpr char kUnwinderCommand[] = "unwinder";
constexpr char kAgentArgument[] = "--agent=";

bool unwinder_offered = false;

void SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::write(socket, bytes.data(), bytes.size());
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

}  // namespace

std::vector<UnwoundRank> ReadUnwound(const std::string& output) {
  std::vector<UnwoundRank> ranks;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('=')) {
      UnwoundRank rank;
      std::from_chars(line.data() + 1, line.data() + line.size(), rank.rank);
      ranks.push_back(std::move(rank));
    } else if (!ranks.empty()) {
      ranks.back().text += line + "\n";
    }
  }
  return ranks;
}

// A user's program may have that name, and arguments to match; but its parent has another number.
bool IsUnwinderCommand(int argc, char** argv) {
  return argc == 4 && std::strcmp(argv[1], kUnwinderCommand) == 0 && std::atoi(argv[2]) > 0 &&
         std::string_view(argv[3]) == kAgentArgument + std::to_string(::getppid());
}

int RunUnwinder(char** argv) {
  const long limit_ms = std::atol(argv[2]);
  const itimerval limit{{0, 0}, {limit_ms / 1000, limit_ms % 1000 * 1000}};
  ::signal(SIGALRM, SIG_DFL);
  ::setitimer(ITIMER_REAL, &limit, nullptr);
  if (!HasUnwinder()) return 1;
  SendAll(STDIN_FILENO, "!");
  std::string bytes;
  std::array<char, 65536> part{};
  for (ssize_t got = 0; (got = ::read(STDIN_FILENO, part.data(), part.size())) > 0;) {
    bytes.append(part.data(), static_cast<size_t>(got));
    while (const auto snapshot = ReadSnapshot(&bytes)) {
      SendAll(STDOUT_FILENO, "=" + std::to_string(snapshot->rank) + "\n" + UnwindSnapshot(*snapshot));
    }
  }
  return 0;
}

void OfferUnwinder() { unwinder_offered = true; }
bool OffersUnwinder() { return unwinder_offered; }

bool StartUnwinder(int input, int output, std::chrono::milliseconds limit) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (::posix_spawn_file_actions_init(&actions) != 0) return false;
  if (::posix_spawnattr_init(&attributes) != 0) {
    ::posix_spawn_file_actions_destroy(&actions);
    return false;
  }
  sigset_t none;
  ::sigemptyset(&none);
  sigset_t defaults;
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGPIPE);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string name = "dlaunch", command = kUnwinderCommand, milliseconds = std::to_string(limit.count());
  std::string agent = kAgentArgument + std::to_string(::getpid());
  char* const arguments[] = {name.data(), command.data(), milliseconds.data(), agent.data(), nullptr};
  pid_t pid = 0;
  const bool started = ::posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, arguments, environ) == 0;
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return started;
}

}  // namespace cohort::launcher
