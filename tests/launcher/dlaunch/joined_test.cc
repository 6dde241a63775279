// Machines that come to a job by themselves, by `dlaunch join`: here, in processes of their own, and in two network
// namespaces.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/base/net/dial.h"
#include "cohort/launcher/base/net/host_name.h"
#include "cohort/launcher/base/net/own_addresses.h"
#include "cohort/launcher/join/gate.h"
#include "cohort/launcher/join/secure_stream.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/options/options.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/join_line.h"
#include "tests/launcher/dlaunch/same_command.h"
#include "tests/launcher/dlaunch/stalled_reader.h"
#include "tests/support/linked_namespaces.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;
using std::chrono::seconds;
using testing::LinkedNamespaces;

vector<string> FirstCommand(const vector<string>& rest) {
  vector<string> arguments = {"--nnodes", "2", "--wait", "60", "--"};
  arguments.insert(arguments.end(), rest.begin(), rest.end());
  return arguments;
}

// Ranks on the others also have the environment of the first.
bool Lives(const DlaunchProcess& first, int rank) { return first.RankProcess(rank) != 0; }

class Join : public ::testing::Test {
 protected:
  void SetUp() override {
    if (OwnAddresses().empty()) GTEST_SKIP() << "this machine has no address that others may reach";
  }
};

TEST_F(Join, TheOtherMachineNeedsNothingButTheToken) {
  DlaunchProcess first(FirstCommand({ProgramFolder() + "/collperf", "all_reduce", "-b", "8", "-e", "64K", "-n", "5"}));
  const string token = TokenOf(&first);
  ASSERT_NE(token, "") << first.err();
  DlaunchProcess second({"join", token});
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_NE(first.err().find("2 ranks on 2 machines that joined"), string::npos) << first.err();
  EXPECT_NE(first.out().find("all_reduce"), string::npos) << first.out();
  EXPECT_EQ(second.out(), "");
  EXPECT_EQ(first.WaitUntilGone(seconds(5)), "");
  EXPECT_EQ(second.WaitUntilGone(seconds(5)), "");
}

// --nnodes alone: only where somebody can read the line to paste.
TEST_F(Join, NnodesAloneWaitsForTheOtherMachineOnATerminal) {
  DlaunchProcess first({"--nnodes", "2", "sh", "-c", "echo $RANK of $WORLD_SIZE"}, {.on_terminal = true});
  const string token = TokenOf(&first);
  ASSERT_NE(token, "") << first.err();
  EXPECT_NE(first.err().find("1 of 2 nodes is here; on the other, run:"), string::npos) << first.err();
  DlaunchProcess second({"join", token});
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_NE(first.out().find("[1] 1 of 2"), string::npos) << first.out();
  EXPECT_EQ(first.WaitUntilGone(seconds(5)), "");
}

TEST_F(Join, BothMachinesEndWithTheJobsStatus) {
  DlaunchProcess first(FirstCommand({"sh", "-c", "if [ $RANK = 1 ]; then echo no tensor >&2; exit 7; fi; sleep 60"}));
  DlaunchProcess second({"join", TokenOf(&first)});
  EXPECT_EQ(first.Wait(), 7) << first.err();
  EXPECT_EQ(second.Wait(), 7) << second.err();
  EXPECT_NE(first.err().find("no tensor"), string::npos) << first.err();
  EXPECT_EQ(second.WaitUntilGone(seconds(5)), "");
}

TEST_F(Join, TheTokenStaysInNoListOfProcesses) {
  DlaunchProcess first(FirstCommand({"sh", "-c", "echo ready; sleep 60"}));
  const string token = TokenOf(&first);
  DlaunchProcess second({"join", token});
  ASSERT_TRUE(first.WaitForOutput("[1] ready")) << first.err() << second.err();
  EXPECT_TRUE(second.ProcessesWith(token).empty());
  ::kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.Wait(), 143);
  EXPECT_NE(second.Wait(), -1);
  EXPECT_EQ(second.WaitUntilGone(seconds(5)), "");
}

TEST_F(Join, CtrlCAtAJoinedMachineIsCalledAnInterrupt) {
  DlaunchProcess first({"--nnodes", "2", "--wait", "60", "sh", "-c", "echo ready; while :; do sleep 0.05; done"});
  const string token = TokenOf(&first);
  DlaunchProcess second({"join", token});
  ASSERT_TRUE(first.WaitForOutput("[1] ready")) << first.err() << second.err();
  ::kill(second.pid(), SIGINT);
  EXPECT_EQ(first.Wait(), 143);
  EXPECT_NE(first.err().find(" was told to end by an interrupt (SIGINT)"), string::npos) << first.err();
  EXPECT_EQ(first.err().find("SIGTERM"), string::npos) << first.err();
  EXPECT_NE(second.Wait(), -1);
}

// As the printed line has it: nobody finds the token in the arguments, however early they look.
TEST_F(Join, TheTokenComesByTheStandardInput) {
  DlaunchProcess first({"--nnodes", "2", "--wait", "60", "sh", "-c", "echo $RANK of $WORLD_SIZE"});
  const string token = TokenOf(&first);
  ASSERT_TRUE(token.starts_with("cohort1.")) << first.err();
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const runtime::FileDescriptor input(pipe[0]);
  runtime::FileDescriptor writer(pipe[1]);
  DlaunchProcess second({"join", "-"}, {.input = input.get()});
  const string line = "\n" + token + "\n";
  ASSERT_EQ(::write(writer.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  EXPECT_EQ(first.Wait(), 0) << first.err() << second.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_NE(first.out().find("[1] 1 of 2"), string::npos) << first.out();
}

TEST_F(Join, TheDeathOfEitherMachineEndsBoth) {
  for (const bool kill_first : {true, false}) {
    DlaunchProcess first(FirstCommand({"sh", "-c", "echo ready; sleep 60 & setsid sleep 60 & wait"}));
    DlaunchProcess second({"join", TokenOf(&first)});
    ASSERT_TRUE(first.WaitUntil([&] {
      return first.out().find("[0] ready") != string::npos && first.out().find("[1] ready") != string::npos;
    })) << first.err()
        << second.err();
    ::kill(kill_first ? first.pid() : second.pid(), SIGKILL);
    const int status = kill_first ? second.Wait() : first.Wait();
    EXPECT_NE(status, 0);
    EXPECT_NE(status, -1) << "it did not end";
    EXPECT_EQ(first.WaitUntilGone(seconds(10)), "");
    EXPECT_EQ(second.WaitUntilGone(seconds(10)), "");
  }
}

// Not the first machine's ranks, which are ended because of that.
TEST_F(Join, TheDeathOfTheOtherMachineIsNamed) {
  DlaunchProcess first(FirstCommand({"sh", "-c", "echo ready; sleep 60"}));
  DlaunchProcess second({"join", TokenOf(&first)});
  ASSERT_TRUE(first.WaitForOutput("[0] ready") && first.WaitForOutput("[1] ready")) << first.err() << second.err();
  ::kill(second.pid(), SIGKILL);
  EXPECT_EQ(first.Wait(), kExitLauncher) << first.err();
  EXPECT_NE(first.err().find("the agent of " + HostName() + "#2"), string::npos) << first.err();
  EXPECT_EQ(first.err().find("gave no reason"), string::npos) << first.err();
  EXPECT_EQ(second.WaitUntilGone(seconds(20)), "");
}

// Some programs leave that to whatever they start.
TEST_F(Join, JoinEndsWhereItWasStartedWithSigchldIgnored) {
  DlaunchProcess first(FirstCommand({"sh", "-c", "echo rank $RANK"}));
  DlaunchProcess second({"join", TokenOf(&first)}, {.enter = [] { return ::signal(SIGCHLD, SIG_IGN) != SIG_ERR; }});
  EXPECT_EQ(first.Wait(seconds(30)), 0) << first.err();
  EXPECT_EQ(second.Wait(seconds(30)), 0) << second.err();
  EXPECT_NE(first.out().find("[1] rank 1"), string::npos) << first.out();
}

// Stopped, they take nothing more of their agents, and in the end there is nobody to wait for.
TEST_F(Join, OutputThatDoesNotComeIsNamed) {
  const TemporaryFolder folder;
  DlaunchProcess first(
      {"--nnodes", "3", "--wait", "60", "--log-dir", folder.path(), "--", "sh", "-c",
       "echo up; while [ ! -e " + folder.path() + "/go ]; do sleep 0.05; done; echo last words of $RANK"});
  const string token = TokenOf(&first);
  DlaunchProcess second({"join", token});
  DlaunchProcess third({"join", token});
  for (const string line : {"[0] up", "[1] up", "[2] up"}) {
    ASSERT_TRUE(first.WaitForOutput(line)) << line << first.err() << second.err() << third.err();
  }
  for (const DlaunchProcess* joined : {&second, &third}) ::kill(joined->pid(), SIGSTOP);
  std::ofstream(folder.path() + "/go") << "";
  EXPECT_EQ(first.Wait(), kExitLauncher) << first.err();
  EXPECT_NE(first.out().find("[0] last words of 0"), string::npos) << first.out();
  for (const string line : {"[1] last words", "[2] last words"}) {
    ASSERT_EQ(first.out().find(line), string::npos) << "it was not stopped in time";
  }
  const auto lost = [](const string& node) {
    return "the last output of " + HostName() + node +
           " did not come, and is lost: its agent, or the way to it, did not end in time and was killed";
  };
  for (const string node : {"#2", "#3"}) EXPECT_NE(first.err().find(lost(node)), string::npos) << first.err();
  std::ifstream file(folder.path() + "/report.json");
  const string report(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(report.find("\"text\": \"" + lost("#2")), string::npos) << report;
  for (DlaunchProcess* joined : {&second, &third}) {
    ::kill(joined->pid(), SIGCONT);
    EXPECT_EQ(joined->Wait(), kExitLauncher) << joined->err();
  }
}

// Once a node's ranks have ended well it is no loss for the others, whether or not what they printed has come.
void LoseANodeThatHasEndedWell(bool its_output_comes) {
  const TemporaryFolder folder;
  DlaunchProcess first(FirstCommand(
      {"sh", "-c", "while [ ! -e " + folder.path() + "/go$RANK ]; do sleep 0.05; done; echo last words of $RANK"}));
  DlaunchProcess second({"join", TokenOf(&first)});
  ASSERT_TRUE(first.WaitUntil([&] { return Lives(first, 0) && Lives(first, 1); })) << first.err();
  const vector<pid_t> agents = second.ProcessesWith("dlaunch agent");
  ASSERT_EQ(agents.size(), 1u);
  if (!its_output_comes) ::kill(second.pid(), SIGSTOP);
  std::ofstream(folder.path() + "/go1") << "";
  ASSERT_TRUE(second.WaitUntil([&] { return !Lives(first, 1); }));
  ASSERT_TRUE(!its_output_comes || first.WaitForOutput("[1] last words of 1")) << first.err();
  std::this_thread::sleep_for(seconds(1));  // the agent has nothing more to tell; nothing shows it
  ::kill(agents[0], SIGKILL);
  std::this_thread::sleep_for(seconds(1));  // its loss is known; nothing shows it
  std::ofstream(folder.path() + "/go0") << "";
  EXPECT_EQ(first.Wait(), its_output_comes ? 0 : kExitLauncher) << first.err();
  const bool missed = first.err().find("the last output of " + HostName() + "#2 did not come") != string::npos;
  EXPECT_EQ(missed, !its_output_comes) << first.err();
  ::kill(second.pid(), SIGCONT);
  EXPECT_EQ(second.Wait(), kExitLauncher) << second.err();
}

TEST_F(Join, MissingOutputOfALostNodeIsReported) {
  std::thread other(LoseANodeThatHasEndedWell, false);  // at the same time: both mostly wait
  LoseANodeThatHasEndedWell(true);
  other.join();
}

// All ranks have ended, and a user who has waited long enough wants to know as well.
TEST_F(Join, OutputThatDoesNotComeIsNamedAfterAnInterrupt) {
  const TemporaryFolder folder;
  DlaunchProcess first(
      FirstCommand({"sh", "-c", "while [ ! -e " + folder.path() + "/go ]; do sleep 0.05; done; echo last words"}));
  DlaunchProcess second({"join", TokenOf(&first)});
  ASSERT_TRUE(first.WaitUntil([&] { return Lives(first, 0) && Lives(first, 1); })) << first.err();
  ::kill(second.pid(), SIGSTOP);
  std::ofstream(folder.path() + "/go") << "";
  ASSERT_TRUE(first.WaitUntil([&] { return !Lives(first, 0) && !Lives(first, 1); }));
  std::this_thread::sleep_for(seconds(1));  // the report has come; nothing shows it
  ::kill(first.pid(), SIGINT);
  EXPECT_EQ(first.Wait(), kExitLauncher) << first.err();
  EXPECT_NE(first.err().find("the last output of " + HostName() + "#2 did not come"), string::npos) << first.err();
  ::kill(second.pid(), SIGCONT);
  EXPECT_EQ(second.Wait(), kExitLauncher) << second.err();
}

// Between its hello and the start nobody learns the end of the process that leads to it: the first machine stands
// still until it is over.
TEST_F(Join, AMachineThatDiesRightAfterItsHelloIsNamedSoon) {
  DlaunchProcess first(FirstCommand({"sh", "-c", "echo rank $RANK"}));
  const auto token = ParseToken(TokenOf(&first));
  ASSERT_TRUE(token.ok()) << token.status();
  const JoinKey key = MakeJoinKey(token->secret);
  const runtime::Deadline soon = runtime::Deadline::After(seconds(20));
  auto socket = ConnectToFirst(token->addresses, soon);
  ASSERT_TRUE(socket.ok()) << socket.status();
  const string knock = KnockOf(key);
  ASSERT_EQ(::send(socket->socket.get(), knock.data(), knock.size(), MSG_NOSIGNAL), static_cast<ssize_t>(knock.size()));
  const auto carrier = [&]() -> pid_t {
    for (const pid_t pid : ListProcesses()) {
      const auto state = ReadProcessState(pid);
      if (state && state->parent == first.pid()) return pid;
    }
    return 0;
  };
  {
    auto stream = SecureStream::Connect(std::move(socket->socket), key, soon);
    ASSERT_TRUE(stream.ok()) << stream.status();
    ASSERT_NE(carrier(), 0);
    ::kill(first.pid(), SIGSTOP);
    ASSERT_TRUE(stream->Write(FormatJoinHello(1, TakeInventory()), soon).ok());
  }
  ASSERT_TRUE(WaitUnread([&] {
    const pid_t way = carrier();
    const auto state = ReadProcessState(way);
    return way == 0 || (state && state->state == 'Z');
  }));
  ::kill(first.pid(), SIGCONT);
  EXPECT_EQ(first.Wait(seconds(30)), kExitLauncher) << first.err();
  EXPECT_NE(first.err().find("the agent of " + HostName() + "#2"), string::npos) << first.err();
  EXPECT_EQ(first.WaitUntilGone(seconds(5)), "");
}

// For longer than a lost connection is missed, and with more than all buffers on the way hold.
TEST_F(Join, AReaderThatPausesLosesNoNode) {
  constexpr int kBytes = 40'000'000;
  DlaunchProcess first(FirstCommand({"sh", "-c",
                                     "[ $RANK = 0 ] || head -c " + std::to_string(kBytes) +
                                         " /dev/zero | tr '\\0' x | fold -w 999; echo; echo end of $RANK"}));
  DlaunchProcess second({"join", TokenOf(&first)});
  pid_t source = 0;
  ASSERT_TRUE(WaitUnread([&] {
    for (const DlaunchProcess* job : {&first, &second}) {
      for (const auto& [pid, command] : job->Processes()) {
        if (command == "fold -w 999 ") source = pid;
      }
    }
    return source != 0;
  }));
  ASSERT_TRUE(IsStuck(source));
  std::this_thread::sleep_for(seconds(12));  // the reader's pause
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_EQ(std::count(first.out().begin(), first.out().end(), 'x'), kBytes);
  for (const char* line : {"[0] end of 0\n", "[1] end of 1\n"}) {
    EXPECT_NE(first.out().find(line), string::npos) << line;
  }
}

TEST_F(Join, ASchedulersNoticeAtTheJoinedMachineReachesAllRanksThatAsk) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    SCOPED_TRACE(signal);
    const TemporaryFolder folder;
    DlaunchProcess first(FirstCommand({COHORT_PREEMPTION_RANK, "1000000", "20000", folder.path()}));
    DlaunchProcess second({"join", TokenOf(&first)});
    ASSERT_TRUE(first.WaitForOutput("[0] under way") && first.WaitForOutput("[1] under way")) << first.err();
    ::kill(second.pid(), signal);
    EXPECT_EQ(first.Wait(), kExitPreempted) << first.err();
    EXPECT_EQ(second.Wait(), kExitPreempted) << second.err();
    EXPECT_NE(first.err().find(std::string("preempted (SIG") + ::sigabbrev_np(signal) + ")"), string::npos)
        << first.err();
    EXPECT_EQ(second.WaitUntilGone(seconds(5)), "");
  }
}

TEST_F(Join, ASchedulersNoticeReachesTheProgramsOfTheJoinedMachineWhereNobodyAsks) {
  DlaunchProcess first(
      FirstCommand({"sh", "-c", "trap 'echo told; exit 0' USR1; echo up; while [ $RANK = 1 ]; do sleep 0.05; done"}));
  DlaunchProcess second({"join", TokenOf(&first)});
  ASSERT_TRUE(first.WaitForOutput("[1] up")) << first.err();
  ::kill(second.pid(), SIGUSR1);
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_NE(first.out().find("[1] told"), string::npos) << first.out();
}

TEST_F(Join, ASchedulersNoticeBeforeTheStartIsDropped) {
  DlaunchProcess first({"--nnodes", "3", "--wait", "60", "--", "sh", "-c", "echo rank $RANK"});
  const string token = TokenOf(&first);
  DlaunchProcess second({"join", token});
  ASSERT_TRUE(first.WaitUntil([&] { return first.err().find("2 of 3") != string::npos; })) << first.err();
  ::kill(second.pid(), SIGUSR1);
  ::kill(second.pid(), SIGUSR2);
  DlaunchProcess third({"join", token});
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_EQ(third.Wait(), 0) << third.err();
  for (const char* name : {"SIGUSR1", "SIGUSR2"}) {
    EXPECT_NE(second.err().find(string(name) + " came before the job had started"), string::npos) << second.err();
  }
}

TEST_F(Join, StrangersDoNoHarm) {
  DlaunchProcess first(FirstCommand({"sh", "-c", "echo rank $RANK"}));
  const string token = TokenOf(&first);
  const auto parsed = ParseToken(token);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  vector<runtime::FileDescriptor> strangers;
  const string knock = KnockOf(MakeJoinKey(parsed->secret));
  for (int i = 0; i < 400; ++i) {
    auto socket = ConnectToFirst(parsed->addresses, runtime::Deadline::After(seconds(20)));
    ASSERT_TRUE(socket.ok()) << socket.status();
    const string says[] = {"", "GET / HTTP/1.1\r\n\r\n", knock.substr(0, 7), string(64, '\x16'),
                           i < 16 ? knock : string("x")};
    const string& text = says[i % 5];
    (void)!::send(socket->socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    strangers.push_back(std::move(socket->socket));
  }
  const auto start = std::chrono::steady_clock::now();
  DlaunchProcess second({"join", token});
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(10));  // the promise is one
  EXPECT_NE(first.out().find("[1] rank 1"), string::npos) << first.out();
}

// The first address of the list leads to a machine that is not the job's: private networks have the same addresses.
TEST_F(Join, AnotherProgramThatAnswersAtAnAddressIsPassedOver) {
  for (const bool answers : {true, false}) {
    SCOPED_TRACE(answers);
    const runtime::FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
    ASSERT_EQ(::listen(listener.get(), 16), 0);
    ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
    DlaunchProcess first(FirstCommand({"sh", "-c", "echo rank $RANK"}));
    auto token = ParseToken(TokenOf(&first));
    ASSERT_TRUE(token.ok()) << token.status();
    token->addresses = "127.0.0.1:" + std::to_string(ntohs(at.sin_port)) + "," + token->addresses;
    DlaunchProcess second({"join", FormatToken(*token), "--wait", "20"});
    if (answers) {
      const runtime::FileDescriptor stranger(::accept(listener.get(), nullptr, nullptr));
      ASSERT_TRUE(stranger.valid());
      (void)!::send(stranger.get(), "220 ready\r\n", 11, MSG_NOSIGNAL);
    }
    ASSERT_EQ(second.Wait(), 0) << second.err();
    EXPECT_EQ(first.Wait(), 0) << first.err();
    EXPECT_NE(first.out().find("[1] rank 1"), string::npos) << first.out();
  }
}

TEST_F(Join, TheFirstMachineIsEnoughWhereOneNodeIs) {
  DlaunchProcess alone({"--nnodes", "1:2", "--wait", "0.1", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"});
  EXPECT_EQ(alone.Wait(), 0) << alone.err();
  EXPECT_NE(alone.err().find("with 1 node the job can start"), string::npos) << alone.err();
  EXPECT_NE(alone.out().find("rank 0 of 1"), string::npos) << alone.out();
  DlaunchProcess few({"--nnodes", "2:3", "--wait", "0.1", "--", "true"});
  EXPECT_EQ(few.Wait(), 125) << few.err();  // the same line may work another time
  EXPECT_NE(few.err().find("1 of 3 nodes came in time, and 2 are the least"), string::npos) << few.err();
}

TEST_F(Join, ATokenOfAnotherJobIsRefused) {
  DlaunchProcess first(FirstCommand({"true"}));
  auto token = ParseToken(TokenOf(&first));
  ASSERT_TRUE(token.ok());
  token->secret = "something else";
  DlaunchProcess second({"join", FormatToken(*token), "--wait", "1"});
  EXPECT_EQ(second.Wait(), 125);
  EXPECT_NE(second.err().find("can't reach the job at "), string::npos) << second.err();
  ::kill(first.pid(), SIGTERM);
  EXPECT_NE(first.Wait(), -1);
}

class JoinAcrossNamespaces : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = LinkedNamespaces::Create();
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    namespaces_ = *std::move(made);
  }
  DlaunchSurroundings In(int node) const {
    return {.enter = [this, node] { return namespaces_->Enter(node).ok(); }};
  }

  std::unique_ptr<LinkedNamespaces> namespaces_;
};

// Nothing but --nnodes and the token.
TEST_F(JoinAcrossNamespaces, TheSameCommandTrainsByAToken) {
  DlaunchProcess first(TwoNodeTraining({"--wait", "60"}), In(0));
  const string token = TokenOf(&first);
  ASSERT_NE(token, "") << first.err();
  DlaunchProcess second({"join", token}, In(1));
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_NE(first.err().find("2 ranks on 2 machines that joined"), string::npos) << first.err();
  EXPECT_EQ(ProblemOfTraining(first.out()), "");
  EXPECT_EQ(second.WaitUntilGone(seconds(5)), "");
}

// The namespaces have another interface each, which leads nowhere.
TEST_F(JoinAcrossNamespaces, JoinUsesTheNamedNetworkAndPorts) {
  vector<string> command =
      FirstCommand({ProgramFolder() + "/collperf", "all_reduce", "-b", "8", "-e", "64K", "-n", "5"});
  command.insert(command.begin(), {"--iface", "10.77.0.0/16", "--port-range", "23100:23199"});
  DlaunchProcess first(command, In(0));
  const string token = TokenOf(&first);
  const auto parsed = ParseToken(token);
  ASSERT_TRUE(parsed.ok()) << first.err();
  EXPECT_TRUE(parsed->addresses.starts_with(LinkedNamespaces::AddressOf(0) + ":231")) << parsed->addresses;
  EXPECT_EQ(parsed->addresses.find(','), string::npos) << parsed->addresses;
  DlaunchProcess second({"join", token}, In(1));
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_NE(first.out().find("all_reduce"), string::npos) << first.out();
}

}  // namespace
}  // namespace cohort::launcher
