// The gate where other nodes come in, with guests who behave oddly. The gate runs in a process of its own, which it
// needs to be the only thread of.
#include "cohort/launcher/join/gate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/base/net/dial.h"
#include "cohort/launcher/join/secure_stream.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::string;
using std::vector;
using std::chrono::seconds;

bool WaitUntil(const std::function<bool()>& condition, seconds limit = seconds(30)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

class Gate : public ::testing::Test {
 protected:
  Gate() { ::signal(SIGPIPE, SIG_IGN); }
  ~Gate() override {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);  // its carriers die with it
    ::waitpid(pid_, nullptr, 0);
  }

  // In a process that may have `files` files, where a number is given.
  void Open(JoinGate::AwaitOptions wait, rlim_t files = 0) {
    absl::StatusOr<JoinGate> gate = JoinGate::Open({0, 0});
    ASSERT_TRUE(gate.ok()) << gate.status();
    address_ = "127.0.0.1:" + std::to_string(gate->port());
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    said_end_ = runtime::FileDescriptor(ends[0]);
    const runtime::FileDescriptor write_end(ends[1]);
    pid_ = ::fork();
    if (pid_ != 0) return;
    if (files > 0) LimitFiles(0, files);
    wait.deadline = Deadline::After(seconds(100));
    wait.say = [&](const string& line) { (void)!::write(write_end.get(), (line + "\n").data(), line.size() + 1); };
    const auto nodes = gate->Await(key_, wait);
    if (!nodes.ok()) wait.say("ends: " + string(nodes.status().message()));
    ::_exit(nodes.ok() ? 0 : 1);
  }
  // Whether it has told users this soon.
  bool Says(const string& text) {
    return WaitUntil([&] {
      char buffer[4096];
      for (ssize_t n = 0; (n = ::read(said_end_.get(), buffer, sizeof buffer)) > 0;)
        said_.append(buffer, static_cast<size_t>(n));
      return said_.find(text) != string::npos;
    });
  }

  // Connects, and says so much.
  runtime::FileDescriptor Say(const string& text) {
    auto connection = ConnectToFirst(address_, Deadline::After(seconds(20)));
    if (!connection.ok()) return {};
    (void)!::send(connection->socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    return std::move(connection->socket);
  }
  runtime::FileDescriptor Knock() { return Say(KnockOf(key_)); }
  absl::StatusOr<SecureStream> Enter() { return SecureStream::Connect(Knock(), key_, Deadline::After(seconds(20))); }
  static void Greet(SecureStream* stream, int index, const v1::NodeInventory& inventory = TakeInventory()) {
    const absl::Status said = stream->Write(FormatJoinHello(index, inventory), Deadline::After(seconds(20)));
    EXPECT_TRUE(said.ok()) << said;
  }

  static void LimitFiles(pid_t pid, rlim_t files) {
    rlimit limit{};
    ::prlimit(pid, RLIMIT_NOFILE, nullptr, &limit);
    limit.rlim_cur = files;
    ::prlimit(pid, RLIMIT_NOFILE, &limit, nullptr);
  }
  // The number that the gate's next file would have.
  rlim_t NextFile() const {
    rlim_t next = 0;
    while (std::filesystem::is_symlink("/proc/" + std::to_string(pid_) + "/fd/" + std::to_string(next))) ++next;
    return next;
  }
  // CPU time that the gate uses within a second from now.
  double UsedInASecond() const {
    const auto ticks = [&] { return ReadProcessState(pid_).value_or(ProcessState()).cpu_ticks; };
    const auto before = ticks();
    std::this_thread::sleep_for(seconds(1));
    const double used = static_cast<double>(ticks() - before) / static_cast<double>(::sysconf(_SC_CLK_TCK));
    RecordProperty("cpu_seconds", std::to_string(used));
    return used;
  }

  // In the order of their coming; dead ones too.
  vector<pid_t> Carriers() const {
    vector<pid_t> carriers;
    for (const pid_t pid : ListProcesses()) {
      const auto state = ReadProcessState(pid);
      if (state && state->parent == pid_) carriers.push_back(pid);
    }
    std::sort(carriers.begin(), carriers.end());
    return carriers;
  }

  const JoinKey key_ = MakeJoinKey("shared");
  pid_t pid_ = -1;

 private:
  string address_;
  runtime::FileDescriptor said_end_;
  string said_;
};

bool HasEnded(const runtime::FileDescriptor& socket) {
  pollfd polled = {socket.get(), POLLIN, 0};
  return ::poll(&polled, 1, 0) == 1;
}

size_t BytesWritten(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/io");
  string name;
  size_t value = 0;
  while (file >> name >> value) {
    if (name == "wchar:") return value;
  }
  return 0;
}

// As with --iface, where this machine has other addresses too.
TEST(GateAddresses, TheGateListensAtItsAddressesAndNowhereElse) {
  const auto answers = [](const string& host, int port) {
    return ConnectToFirst(host + ":" + std::to_string(port), Deadline::After(seconds(20))).ok();
  };
  const absl::StatusOr<JoinGate> two = JoinGate::Open({0, 0}, {"127.0.0.2", "127.0.0.3"});
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_FALSE(answers("127.0.0.1", two->port()));
  EXPECT_TRUE(answers("127.0.0.2", two->port()));
  EXPECT_TRUE(answers("127.0.0.3", two->port()));
  const absl::StatusOr<JoinGate> everywhere = JoinGate::Open({0, 0});
  ASSERT_TRUE(everywhere.ok()) << everywhere.status();
  EXPECT_TRUE(answers("127.0.0.1", everywhere->port()));
  EXPECT_TRUE(answers("127.0.0.2", everywhere->port()));
  const absl::StatusOr<JoinGate> taken = JoinGate::Open({two->port(), two->port()}, {"127.0.0.1", "127.0.0.3"});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable) << taken.status();
  EXPECT_FALSE(JoinGate::Open({0, 0}, {"192.0.2.1"}).ok()) << "which is nobody's";
  const absl::StatusOr<JoinGate> without = JoinGate::Open({0, 0}, {"192.0.2.1", "127.0.0.2"});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_TRUE(answers("127.0.0.2", without->port()));
}

// One node says that it has another's place in the very moment in which that one leaves.
TEST_F(Gate, ANodeThatTakesAnothersPlaceLeavesTheOthersAlone) {
  ASSERT_NO_FATAL_FAILURE(Open({.count = 4, .indexed = true}));
  auto again = Enter();
  auto old = Enter();
  auto other = Enter();
  ASSERT_TRUE(again.ok() && old.ok() && other.ok()) << again.status() << old.status() << other.status();
  ASSERT_TRUE(WaitUntil([&] { return Carriers().size() == 3; }));
  const vector<pid_t> carriers = Carriers();
  Greet(&*old, 1);
  ASSERT_TRUE(Says("joined: 2 of 5"));
  Greet(&*other, 2);
  ASSERT_TRUE(Says("joined: 3 of 5"));

  ::kill(pid_, SIGSTOP);
  const size_t written = BytesWritten(carriers[0]);
  Greet(&*again, 1);
  EXPECT_TRUE(WaitUntil([&] { return BytesWritten(carriers[0]) > written; }));
  old = absl::CancelledError();
  EXPECT_TRUE(WaitUntil([&] {
    const auto state = ReadProcessState(carriers[1]);
    return !state || state->state == 'Z';
  }));
  ::kill(pid_, SIGCONT);
  auto last = Enter();
  ASSERT_TRUE(last.ok()) << last.status();
  Greet(&*last, 3);
  EXPECT_TRUE(Says("joined: 4 of 5"));
}

// An observer of a node's knock can repeat it, and gets a carrier each time.
TEST_F(Gate, StrangersThatKnockWithoutTheKeyAreBounded) {
  constexpr size_t kCarriers = 64;
  ASSERT_NO_FATAL_FAILURE(Open({.count = 1, .handshake = seconds(3)}));  // all come within that
  vector<pollfd> strangers;
  vector<runtime::FileDescriptor> sockets;
  for (size_t i = 0; i < kCarriers + 20; ++i) {
    sockets.push_back(Knock());
    ASSERT_TRUE(sockets.back().valid());
    strangers.push_back({sockets.back().get(), POLLIN, 0});
  }
  size_t most = 0;
  const auto dismissed = [&] {
    most = std::max(most, Carriers().size());
    ::poll(strangers.data(), strangers.size(), 0);
    return std::count_if(strangers.begin(), strangers.end(), [](const pollfd& one) { return one.revents != 0; });
  };
  EXPECT_TRUE(WaitUntil([&] { return dismissed() >= 20; }));
  EXPECT_EQ(most, kCarriers);
  absl::StatusOr<SecureStream> node = absl::UnknownError("none yet");
  EXPECT_TRUE(WaitUntil([&] {
    node = Enter();
    return node.ok();
  }));
  ASSERT_TRUE(node.ok()) << node.status();
  Greet(&*node, -1);
  EXPECT_TRUE(Says("joined: 2 of 2"));
}

// A stranger's first byte may be the knock's, and that of a node may come in pieces, the last with what follows.
TEST_F(Gate, APartOfAKnockIsWaitedForAtNoCost) {
  ASSERT_NO_FATAL_FAILURE(Open({.count = 1}));
  const string knock = KnockOf(key_);
  const auto stranger = Say(knock.substr(0, 1));
  auto slow = Say(knock.substr(0, 7));
  ASSERT_TRUE(stranger.valid() && slow.valid());
  EXPECT_LT(UsedInASecond(), 0.1);
  ::kill(pid_, SIGSTOP);
  ASSERT_EQ(::send(slow.get(), knock.data() + 7, knock.size() - 7, MSG_NOSIGNAL),
            static_cast<ssize_t>(knock.size() - 7));
  std::thread later([&, before = BytesWritten(::getpid())] {
    EXPECT_TRUE(WaitUntil([&] { return BytesWritten(::getpid()) > before; })) << "the stream's first words";
    ::kill(pid_, SIGCONT);
  });
  auto node = SecureStream::Connect(std::move(slow), key_, Deadline::After(seconds(20)));
  later.join();
  ASSERT_TRUE(node.ok()) << node.status();
  Greet(&*node, -1);
  EXPECT_TRUE(Says("joined: 2 of 2"));
}

TEST_F(Gate, TheOldestStrangerGoesWhereDescriptorsRunOut) {
  ASSERT_NO_FATAL_FAILURE(Open({.count = 1}));
  auto oldest = Knock();  // once it has a carrier, the gate has begun
  ASSERT_TRUE(WaitUntil([&] { return Carriers().size() == 1; }));
  oldest.Close();
  ASSERT_TRUE(WaitUntil([&] { return Carriers().empty(); }));
  const rlim_t files = NextFile();
  oldest = Say("");
  ASSERT_TRUE(WaitUntil([&] { return NextFile() > files; }));
  LimitFiles(pid_, NextFile());
  auto next = Say("");
  EXPECT_TRUE(WaitUntil([&] { return HasEnded(oldest); }, seconds(3))) << "it is not the limit of its own time";
  EXPECT_FALSE(HasEnded(next));
  next.Close();
  ASSERT_TRUE(WaitUntil([&] { return NextFile() == files; }));
  LimitFiles(pid_, files);
  const auto waiting = Say("");
  EXPECT_LT(UsedInASecond(), 0.1);
  EXPECT_FALSE(HasEnded(waiting));
  LimitFiles(pid_, 1024);
  auto node = Enter();
  ASSERT_TRUE(node.ok()) << node.status();
  Greet(&*node, -1);
  EXPECT_TRUE(Says("joined: 2 of 2"));
}

TEST_F(Gate, StrangersHaveFewerPlacesWhereThereAreFewDescriptors) {
  constexpr size_t kStrangers = 40, kPlaces = 9;
  ASSERT_NO_FATAL_FAILURE(Open({.count = 1}, 64));
  vector<runtime::FileDescriptor> strangers;
  for (size_t i = 0; i < kStrangers; ++i) strangers.push_back(Say(""));
  const auto ended = [&] { return std::count_if(strangers.begin(), strangers.end(), HasEnded); };
  EXPECT_TRUE(WaitUntil([&] { return ended() >= static_cast<long>(kStrangers - kPlaces); }, seconds(3)))
      << ended() << " have ended before their time is over";
  auto node = Enter();
  ASSERT_TRUE(node.ok()) << node.status();
  Greet(&*node, -1);
  EXPECT_TRUE(Says("joined: 2 of 2"));
}

absl::Status RefuseOld(const v1::NodeInventory& inventory) {
  return inventory.version() == "old" ? absl::InvalidArgumentError("is old") : absl::OkStatus();
}

v1::NodeInventory OldMachine() {
  v1::NodeInventory inventory = TakeInventory();
  inventory.set_host("relic");
  inventory.set_version("old");
  return inventory;
}

string RefusalTo(SecureStream* stream) {
  const absl::StatusOr<string> first = stream->AwaitBytes();
  return first.ok() ? ParseJoinRefusal(*first).value_or("none") : string(first.status().message());
}

TEST_F(Gate, AnUnusableNodeIsToldWhyAndAnotherTakesItsPlace) {
  ASSERT_NO_FATAL_FAILURE(Open({.count = 1, .least = 0, .check = &RefuseOld}));
  auto old = Enter();
  ASSERT_TRUE(old.ok()) << old.status();
  Greet(&*old, -1, OldMachine());
  ASSERT_TRUE(Says("left out: host relic is old\n"));
  EXPECT_EQ(RefusalTo(&*old), "host relic is old");
  auto node = Enter();
  ASSERT_TRUE(node.ok()) << node.status();
  Greet(&*node, -1);
  EXPECT_TRUE(Says("joined: 2 of 2"));
}

TEST_F(Gate, AnUnusableNodeEndsTheWaitWhereAllAreNeeded) {
  ASSERT_NO_FATAL_FAILURE(Open({.count = 2, .check = &RefuseOld}));
  auto old = Enter();
  ASSERT_TRUE(old.ok()) << old.status();
  Greet(&*old, -1, OldMachine());
  EXPECT_EQ(RefusalTo(&*old), "host relic is old");
  old = absl::CancelledError();  // the gate waits for it to leave, up to a second
  EXPECT_TRUE(Says("ends: host relic is old\n"));
}

TEST_F(Gate, ANodeBeyondTheCountIsToldSo) {
  ASSERT_NO_FATAL_FAILURE(Open({.count = 1, .farewell = seconds(30)}));
  auto surplus = Enter(), needed = Enter();
  ASSERT_TRUE(needed.ok() && surplus.ok()) << needed.status() << surplus.status();
  Greet(&*needed, -1);
  EXPECT_TRUE(Says("joined: 2 of 2"));
  EXPECT_EQ(RefusalTo(&*surplus), "the job starts without it, with 2 nodes");
}

TEST(JoinRefusal, ARefusalIsReadBackShortenedAndAnAgentsMessageIsNone) {
  EXPECT_EQ(ParseJoinRefusal(FormatJoinRefusal("too old")), "too old");
  EXPECT_LE(FormatJoinRefusal(string(100'000, 'x')).size(), size_t{4096});
  EXPECT_EQ(ParseJoinRefusal("\x05hello"), std::nullopt);
  EXPECT_EQ(ParseJoinRefusal(""), std::nullopt);
}

}  // namespace
}  // namespace cohort::launcher
