#include "cohort/launcher/join/join_job.h"

#include <netdb.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iomanip>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/agent/agent.h"
#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/dial.h"
#include "cohort/launcher/base/orphans.h"
#include "cohort/launcher/base/piped_process.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/join/early_notices.h"
#include "cohort/launcher/join/gate.h"
#include "cohort/launcher/join/secure_stream.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::seconds;

constexpr seconds kAttempt{5};
constexpr int kRetryMs = 500;
constexpr int kTellOfWaitMs = 10000;

// "name:port" as a list of numeric addresses that can be dialled; such a list as it is.
absl::StatusOr<std::string> Resolve(const std::string& addresses) {
  const size_t colon = addresses.rfind(':');
  const std::string host = addresses.substr(0, colon);
  if (addresses.find(',') != std::string::npos || addresses.starts_with('[')) return addresses;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) return absl::UnavailableError("the name " + host + " is not known yet: " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  std::vector<std::string> numeric;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST];
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      numeric.emplace_back(text);
    }
  }
  return FormatAddresses(WithoutUnscoped(numeric), PortOf(addresses));
}

absl::StatusOr<SecureStream> Greet(runtime::FileDescriptor socket, const JoinKey& key, Deadline deadline) {
  const std::string knock = KnockOf(key);
  if (::send(socket.get(), knock.data(), knock.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(knock.size())) {
    return absl::UnavailableError(std::string("it does not take our first bytes: ") + std::strerror(errno));
  }
  return SecureStream::Connect(std::move(socket), key, deadline);
}

// An address of the job's may be another machine's here, as those of private networks are: one that does not have
// the key is passed over.
absl::StatusOr<SecureStream> Dial(const JoinTarget& target) {
  const Deadline deadline = Deadline::After(kAttempt);
  COHORT_ASSIGN_OR_RETURN(std::string addresses, Resolve(target.addresses));
  absl::Status failed;
  while (failed.ok() || !addresses.empty()) {
    absl::StatusOr<Connection> connection = ConnectToFirst(addresses, deadline);
    if (!connection.ok()) return failed.ok() ? connection.status() : failed;
    const auto share = deadline.left() / static_cast<int64_t>(CountAddresses(addresses));
    absl::StatusOr<SecureStream> stream = Greet(std::move(connection->socket), target.key, Deadline::After(share));
    if (stream.ok()) return stream;
    failed = Prefixed(connection->address + " answers, but ", stream.status());
    addresses = WithoutAddress(addresses, connection->address);
  }
  return failed;
}

absl::StatusOr<SecureStream> DialUntilItAnswers(const JoinTarget& target) {
  const Deadline deadline = Deadline::After(target.wait);
  for (bool told = false;;) {
    absl::StatusOr<SecureStream> stream = Dial(target);
    if (stream.ok() || absl::IsInvalidArgument(stream.status())) return stream;
    const std::string why(stream.status().message());
    if (deadline.passed()) {
      return WithRemedy(
          Remedy::kJobOutOfReach,
          absl::UnavailableError("can't reach the job at " + target.addresses + ": " + why +
                                 "; it listens only as long as it waits for nodes: has it all of them, or ended?"));
    }
    if (!std::exchange(told, true)) Say("waiting for the job at " + target.addresses + " (" + why + ")");
    ::poll(nullptr, 0, kRetryMs);
  }
}

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) ::sigaddset(&set, signal);
  return set;
}

// Passes on to the agent what a scheduler or a person tells this process. Returns how often it was told to end.
int PassSignalsOn(int signals, pid_t agent) {
  int ends = 0;
  signalfd_siginfo info{};
  while (::read(signals, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      ReapOrphans([agent](pid_t pid) { return pid == agent; });
      continue;
    }
    const bool notice = signal == SIGUSR1 || signal == SIGUSR2;
    if (notice) Say(std::string(NameOfNotice(signal)) + ": telling the job");
    if (!notice) ++ends;
    if (notice) {
      ::kill(agent, signal);
    } else {
      ::sigqueue(agent, SIGTERM, {.sival_int = signal});  // with the signal that came, for the agent's words
    }
  }
  return ends;
}

// Its connection is over, and it ends its ranks within their grace. Where one can't be ended, as in a driver that
// hangs, the user may: what is left is the sentinel's.
int AwaitAgent(int signals, pid_t agent) {
  int status = 0;
  bool told = false;
  for (int asked = 0;;) {
    const pid_t ended = ::waitpid(agent, &status, WNOHANG);
    if (ended == agent || (ended < 0 && errno != EINTR)) return status;
    pollfd readable{signals, POLLIN, 0};
    if (::poll(&readable, 1, told ? -1 : kTellOfWaitMs) == 0) {
      told = true;
      Say("waits for this machine's agent (pid " + std::to_string(agent) + ") to end its ranks; SIGINT twice kills it");
    }
    asked += PassSignalsOn(signals, agent);
    if (asked >= 2) ::kill(agent, SIGKILL);
  }
}

// The agent's exit status, which is the job's.
int RunAgentBehind(SecureStream* stream) {
  const sigset_t handled = SetOf({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD});
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  const runtime::FileDescriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  absl::StatusOr<PipedProcess> agent =
      StartPiped({"dlaunch", "agent", "--node=joined", kExitWithJobArgument},
                 {.program = "/proc/self/exe", .death_signal = LauncherGoneSignal(), .keep_blocked = true});
  if (!agent.ok()) return Refuse(agent.status(), kExitLauncher);
  const absl::Status carried = stream->Pump(
      std::move(agent->output), std::move(agent->input),
      {.signals = signals.get(), .on_signal = [&] { return PassSignalsOn(signals.get(), agent->pid) > 0; }});
  const int status = AwaitAgent(signals.get(), agent->pid);
  if (!carried.ok()) {
    return Refuse("lost the job: " + TextOf(carried) + "; its ranks here were ended", kExitLauncher);
  }
  if (WIFSIGNALED(status)) {
    return Refuse("this machine's agent was killed by " + SignalName(WTERMSIG(status)) +
                      ": its ranks here were ended, and how the job ends is not known here",
                  kExitLauncher);
  }
  const int code = WEXITSTATUS(status);
  if (code == kExitLauncher) return Refuse("the job could not go on: its first machine says why", code);
  return Refuse("the job has ended, with status " + std::to_string(code), code);
}

std::string ReadToken() {
  if (::isatty(STDIN_FILENO) == 1)
    Say("paste the token, which ends the line that dlaunch printed on the first machine");
  std::string text;
  std::cin >> std::setw(kMaxToken + 1) >> text;
  return text;
}

SubcommandLine JoinLine(std::string* token, std::string* wait) {
  return {
      .name = "join",
      .summary =
          "Makes this machine a node of the job whose dlaunch has printed this line; blocks until the job has\n"
          "ended, with its exit status.",
      .notes =
          "Examples:\n"
          "  dlaunch join - <<< cohort1.MTkyLjAu...   the line that dlaunch --nnodes 2 train has printed, in bash\n"
          "  dlaunch join - --wait 1h < token.txt     a job that is started later\n",
      .hint = "- instead of TOKEN reads it from the standard input, where no other user sees it",
      .operand = {"TOKEN",
                  "-: read the token, a secret, from the standard input; as an argument other users of this machine "
                  "may see it until dlaunch has begun and overwritten it",
                  token, true},
      .values = {{"--wait", "TIME", "How long the other dlaunch may take to answer (600)", wait}}};
}

}  // namespace

int JoinJob(const JoinTarget& target) {
  ::signal(SIGPIPE, SIG_IGN);
  HoldNotices();
  absl::StatusOr<SecureStream> stream = DialUntilItAnswers(target);
  if (!stream.ok()) return Refuse(stream.status(), kExitLauncher);
  const absl::Status offered =
      stream->Write(FormatJoinHello(target.index, TakeInventory()), Deadline::After(seconds(30)));
  if (offered.ok()) Say("reached the job at " + target.addresses + ", which prints what the ranks print");
  const absl::StatusOr<std::string> first = offered.ok() ? stream->AwaitBytes() : absl::StatusOr<std::string>(offered);
  if (!first.ok() || first->empty()) {
    return Refuse("the job started without this machine, or ended before it started: its first machine says why",
                  kExitLauncher);
  }
  if (const auto why = ParseJoinRefusal(*first)) {
    const std::string text = "this machine is not used; the job's first machine says: " + *why;
    return Refuse(EndsWithRemedy(*why) ? text : WithRemedy(Remedy::kMachineRefused, text), kExitLauncher);
  }
  DropNotices();
  return RunAgentBehind(&*stream);
}

runtime::ManualCommand JoinManual() {
  std::string text;
  return ManualOf(JoinLine(&text, &text));
}

int RunJoinCommand(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 2; i < argc; ++i) {
    words.emplace_back(argv[i]);
    std::memset(argv[i], '*', words.back().size());  // first of all: everybody may read it there
  }
  std::string typed, seconds;
  const SubcommandLine line = JoinLine(&typed, &seconds);
  const absl::Status read = ReadSubcommandLine(words, line);
  if (!read.ok()) return Refuse(read, kExitUsage);
  JoinTarget target{.wait = kJoinWait};
  if (!seconds.empty()) {
    const absl::StatusOr<std::chrono::milliseconds> wait = ReadTime("--wait", seconds);
    if (!wait.ok()) return Refuse(wait.status(), kExitUsage);
    target.wait = *wait;
  }
  const absl::StatusOr<JoinToken> token = ParseToken(typed == "-" ? ReadToken() : typed);
  if (!token.ok()) {
    const std::string text = std::string(token.status().message()) + "; use: " + UseOf(line);
    return Refuse(WithRemedyOf(token.status(), absl::InvalidArgumentError(text)), kExitUsage);
  }
  target.addresses = token->addresses;
  target.key = MakeJoinKey(token->secret);
  return JoinJob(target);
}

}  // namespace cohort::launcher
