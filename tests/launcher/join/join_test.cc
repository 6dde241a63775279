// Tokens, what joining nodes say first, what pods' variables tell: round trips, and answers to any bytes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/join/gate.h"
#include "cohort/launcher/join/secure_stream.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/nodes/kubernetes.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/support/resident_memory.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::string;
using std::chrono::seconds;
using ::testing::HasSubstr;

string RandomBytes(std::mt19937* random, size_t size) {
  string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>((*random)());
  return bytes;
}

TEST(Token, ATokenIsReadBackWholeOrNotAtAll) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 500; ++i) {
    const JoinToken token{.secret = RandomBytes(&random, random() % 64), .addresses = "10.0.0.1:4711,[fd00::1]:4711"};
    const string text = FormatToken(token);
    EXPECT_EQ(text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.="),
              string::npos);
    const auto parsed = ParseToken(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed->secret, token.secret);
    EXPECT_EQ(parsed->addresses, token.addresses);
    EXPECT_FALSE(ParseToken(text.substr(0, random() % text.size())).ok());
    string mistyped = text;
    char& letter = mistyped[random() % text.size()];
    letter = letter == 'x' ? 'y' : 'x';
    const auto wrong = ParseToken(mistyped);
    EXPECT_TRUE(!wrong.ok() || wrong->secret == token.secret) << mistyped;
    EXPECT_FALSE(ParseToken("cohort1." + RandomBytes(&random, random() % 100)).ok());
  }
}

TEST(Token, KnocksAndKeysDifferBySecret) {
  EXPECT_EQ(KnockOf(MakeJoinKey("a")), KnockOf(MakeJoinKey("a")));
  EXPECT_NE(KnockOf(MakeJoinKey("a")), KnockOf(MakeJoinKey("b")));
  EXPECT_EQ(KnockOf(MakeJoinKey("a")).size(), kKnockBytes);
}

TEST(JoinHello, AHelloIsReadBackAndAnyBytesAreAnswered) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const v1::NodeInventory inventory = TakeInventory();
  const string text = FormatJoinHello(3, inventory);
  const auto hello = ParseJoinHello(text);
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->index, 3);
  EXPECT_EQ(hello->inventory.host(), inventory.host());
  for (int i = 0; i < 2000; ++i) {
    string damaged = text;
    for (unsigned n = random() % 3; n > 0; --n) damaged[random() % damaged.size()] = static_cast<char>(random());
    damaged.resize(random() % 2 == 0 ? damaged.size() : random() % damaged.size());
    const auto parsed = ParseJoinHello(damaged);  // no crash; what is refused is refused with words
    EXPECT_TRUE(parsed.ok() || !parsed.status().message().empty());
  }
  EXPECT_FALSE(ParseJoinHello("cohort-join 99999999999\n" + FormatInventory(inventory)).ok());
}

TEST(Network, ANetworkHoldsTheAddressesOfItsPrefix) {
  EXPECT_TRUE(InNetwork("10.1.2.3", "10.0.0.0/8"));
  EXPECT_TRUE(InNetwork("10.1.2.3", "10.1.2.3/32"));
  EXPECT_TRUE(InNetwork("10.1.2.3", "0.0.0.0/0"));
  EXPECT_TRUE(InNetwork("fd00::1", "fd00::/16"));
  EXPECT_FALSE(InNetwork("11.1.2.3", "10.0.0.0/8"));
  EXPECT_FALSE(InNetwork("10.129.0.0", "10.0.0.0/9"));
  EXPECT_FALSE(InNetwork("fd00::1", "fd01::/16"));
  for (const char* network :
       {"", "eth0", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8x", "fd00::/8"}) {
    EXPECT_FALSE(InNetwork("10.1.2.3", network)) << network;
  }
}

absl::StatusOr<KubernetesPod> ReadPod(const std::map<string, string>& variables, const string& name) {
  return ReadKubernetesVariables(
      [&](const char* key) -> std::optional<string> {
        const auto found = variables.find(key);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      name);
}

TEST(Kubernetes, PodsOfAnIndexedJobFindTheFirstByItsName) {
  const auto pod = ReadPod({{"JOB_COMPLETION_INDEX", "12"}}, "train-12.train.lab.svc.cluster.local");
  ASSERT_TRUE(pod.ok()) << pod.status();
  EXPECT_EQ(pod->index, 12);
  EXPECT_EQ(pod->first, "train-0.train.lab.svc.cluster.local");
  EXPECT_FALSE(pod->count);
  EXPECT_EQ(ReadPod({{"JOB_COMPLETION_INDEX", "0"}}, "train-0")->index, 0) << "needs no name";
}

TEST(Kubernetes, PodsOfAJobSetFindTheFirstByItsName) {
  const auto pod = ReadPod({{"JOB_COMPLETION_INDEX", "1"}}, "set-workers-0-1.set.lab.svc.cluster.local");
  ASSERT_TRUE(pod.ok()) << pod.status();
  EXPECT_EQ(pod->first, "set-workers-0-0.set.lab.svc.cluster.local");
}

TEST(Kubernetes, PodsOfALeaderWorkerSetReadTheFirstsAddress) {
  const auto pod =
      ReadPod({{"LWS_LEADER_ADDRESS", "lws-0.lws.default"}, {"LWS_WORKER_INDEX", "3"}, {"LWS_GROUP_SIZE", "4"}},
              "lws-0-3.lws.default");
  ASSERT_TRUE(pod.ok()) << pod.status();
  EXPECT_EQ(pod->index, 3);
  EXPECT_EQ(pod->count, 4);
  EXPECT_EQ(pod->first, "lws-0.lws.default");
}

TEST(Kubernetes, PodsWithoutANameOrIndexAreRefusedWithTheRemedy) {
  EXPECT_THAT(string(ReadPod({{"JOB_COMPLETION_INDEX", "1"}}, "train-1").status().message()),
              HasSubstr("headless Service"));
  EXPECT_THAT(string(ReadPod({{"JOB_COMPLETION_INDEX", "1"}}, "own-name.svc").status().message()),
              HasSubstr("subdomain"));
  for (const char* index : {"", "-1", "x", "99999999999"}) {
    EXPECT_FALSE(ReadPod({{"JOB_COMPLETION_INDEX", index}}, "train-1.a").ok()) << index;
    EXPECT_FALSE(ReadPod({{"LWS_LEADER_ADDRESS", "a"}, {"LWS_WORKER_INDEX", index}}, "b").ok()) << index;
  }
}

struct Ends {
  runtime::FileDescriptor server;
  runtime::FileDescriptor client;
};
Ends Connected() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  return {runtime::FileDescriptor(ends[0]), runtime::FileDescriptor(ends[1])};
}

// Runs the other side in a process of its own, which is ended with 0 when `body` says true.
template <typename Body>
pid_t InAnotherProcess(Body body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body() ? 0 : 1);
  return pid;
}
int StatusOf(pid_t pid) {
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

class SecureStreams : public ::testing::Test {
 protected:
  SecureStreams() { ::signal(SIGPIPE, SIG_IGN); }
};

TEST_F(SecureStreams, CarriesEveryByteBothWays) {
  Ends ends = Connected();
  const JoinKey key = MakeJoinKey("shared");
  const pid_t echo = InAnotherProcess([&] {  // sends back what it gets
    ends.server.Close();
    int loop[2];
    if (::pipe(loop) != 0) return false;
    auto stream = SecureStream::Connect(std::move(ends.client), key, Deadline::After(seconds(20)));
    return stream.ok() && stream->Pump(runtime::FileDescriptor(loop[0]), runtime::FileDescriptor(loop[1]), {}).ok();
  });
  ends.client.Close();
  auto stream = SecureStream::Accept(std::move(ends.server), key, Deadline::After(seconds(20)));
  ASSERT_TRUE(stream.ok()) << stream.status();
  int in[2], out[2];
  ASSERT_EQ(::pipe(in), 0);
  ASSERT_EQ(::pipe(out), 0);
  std::mt19937 random(7);
  const string sent = RandomBytes(&random, 3 << 20);
  const pid_t writer = InAnotherProcess([&] {
    ::close(in[0]);
    ::close(out[0]);
    ::close(out[1]);
    for (size_t done = 0; done < sent.size();) {
      const ssize_t n = ::write(in[1], sent.data() + done, sent.size() - done);
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  });
  ::close(in[1]);
  const pid_t reader = InAnotherProcess([&] {
    ::close(in[0]);
    ::close(out[1]);
    string got;
    char buffer[65536];
    for (ssize_t n = 0; (n = ::read(out[0], buffer, sizeof buffer)) > 0;) got.append(buffer, static_cast<size_t>(n));
    return got == sent;
  });
  ::close(out[0]);
  EXPECT_TRUE(
      stream->Pump(runtime::FileDescriptor(in[0]), runtime::FileDescriptor(out[1]), {.ends_with_peer = true}).ok());
  EXPECT_EQ(StatusOf(writer), 0);
  EXPECT_EQ(StatusOf(reader), 0);
  EXPECT_EQ(StatusOf(echo), 0);
}

// The last word must come through a connection that the bytes before it have filled: the reader is slow here.
TEST_F(SecureStreams, SaysTheEndThroughAFullConnection) {
  const JoinKey key = MakeJoinKey("shared");
  for (size_t size = 1; size < 200'000; size = size * 7 / 4 + 1) {
    Ends ends = Connected();
    const int small = 1;  // the kernel takes its smallest
    ASSERT_EQ(::setsockopt(ends.client.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    const pid_t sender = InAnotherProcess([&] {
      ends.server.Close();
      auto stream = SecureStream::Connect(std::move(ends.client), key, Deadline::After(seconds(20)));
      const int input = ::memfd_create("input", MFD_CLOEXEC);
      if (!stream.ok() || ::ftruncate(input, static_cast<off_t>(size)) != 0) return false;
      return stream->Pump(runtime::FileDescriptor(input), runtime::FileDescriptor(::open("/dev/null", O_WRONLY)), {})
          .ok();
    });
    ends.client.Close();
    auto stream = SecureStream::Accept(std::move(ends.server), key, Deadline::After(seconds(20)));
    ASSERT_TRUE(stream.ok()) << stream.status();
    ::usleep(20'000);
    int endless[2];
    ASSERT_EQ(::pipe(endless), 0);
    const runtime::FileDescriptor open_end(endless[1]);
    const absl::Status ended =
        stream->Pump(runtime::FileDescriptor(endless[0]), runtime::FileDescriptor(::open("/dev/null", O_WRONLY)),
                     {.ends_with_peer = true});
    EXPECT_TRUE(ended.ok()) << ended << " after " << size << " bytes";
    EXPECT_EQ(StatusOf(sender), 0);
  }
}

// The reader lets the connection fill up before each piece that it takes, so that no buffer on the way is ever empty.
TEST_F(SecureStreams, HoldsLittleOfWhatPassesToASlowReader) {
  constexpr size_t kBlocks = 64, kMuch = 6u << 20;
  std::mt19937 random(7);
  const string block = RandomBytes(&random, 1u << 20);
  const runtime::FileDescriptor input(::memfd_create("input", MFD_CLOEXEC));
  for (size_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(::pwrite(input.get(), block.data(), block.size(), static_cast<off_t>(i * block.size())),
              static_cast<ssize_t>(block.size()));
  }
  const JoinKey key = MakeJoinKey("shared");
  Ends ends = Connected();
  int output[2];
  ASSERT_EQ(::pipe(output), 0);
  const auto nothing = [](int flags) { return runtime::FileDescriptor(::open("/dev/null", flags)); };
  const pid_t sender = InAnotherProcess([&] {
    ends.server.Close();
    ::close(output[0]);
    ::close(output[1]);
    auto stream = SecureStream::Connect(std::move(ends.client), key, Deadline::After(seconds(20)));
    return stream.ok() && stream->Pump(runtime::FileDescriptor(::dup(input.get())), nothing(O_WRONLY), {}).ok();
  });
  const pid_t receiver = InAnotherProcess([&] {
    ends.client.Close();
    ::close(output[0]);
    auto stream = SecureStream::Accept(std::move(ends.server), key, Deadline::After(seconds(20)));
    return stream.ok() && stream->Pump(nothing(O_RDONLY), runtime::FileDescriptor(output[1]), {}).ok();
  });
  ends = {};
  ::close(output[1]);
  runtime::FileDescriptor reader(output[0]);
  const auto room = static_cast<size_t>(::fcntl(reader.get(), F_GETPIPE_SZ));
  const Deadline deadline = Deadline::After(seconds(60));
  size_t got = 0, before[2] = {0, 0};
  for (string piece(room / 2, '\0'); got < kBlocks * block.size() && !HasFailure(); got += piece.size()) {
    const size_t awaited = std::min(room, kBlocks * block.size() - got);
    for (int waiting = 0; static_cast<size_t>(waiting) < awaited && !deadline.passed(); ::usleep(20)) {
      ASSERT_EQ(::ioctl(reader.get(), FIONREAD, &waiting), 0);
    }
    for (const int side : {0, 1}) {
      const size_t holds = testing::ResidentMemory(side == 0 ? sender : receiver);
      if (got == 0) before[side] = holds;
      EXPECT_LT(holds, before[side] + kMuch) << (side == 0 ? "the sender" : "the receiver") << " after " << got;
    }
    ASSERT_EQ(::read(reader.get(), piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
    EXPECT_EQ(std::string_view(block).substr(got % block.size(), piece.size()).compare(piece), 0) << "after " << got;
  }
  reader.Close();
  EXPECT_EQ(StatusOf(sender), 0);
  EXPECT_EQ(StatusOf(receiver), 0);
}

// The loss is seen while nobody takes what came before it, and told when somebody has.
TEST_F(SecureStreams, ALossIsNotForgottenWhileTheOutputIsFull) {
  const JoinKey key = MakeJoinKey("shared");
  Ends ends = Connected();
  const pid_t sender = InAnotherProcess([&] {  // ends without a word
    ends.server.Close();
    auto stream = SecureStream::Connect(std::move(ends.client), key, Deadline::After(seconds(20)));
    return stream.ok() && stream->Write(string(32u << 10, 'x'), Deadline::After(seconds(20))).ok();
  });
  ends.client.Close();
  int go[2], input[2], output[2];
  for (int* const ends_of : {go, input, output}) ASSERT_EQ(::pipe(ends_of), 0);
  const int room = ::fcntl(output[1], F_SETPIPE_SZ, 4096);
  ASSERT_GT(room, 0);
  const pid_t carrier = InAnotherProcess([&] {
    ::close(output[0]);
    auto stream = SecureStream::Accept(std::move(ends.server), key, Deadline::After(seconds(20)));
    char byte = 0;
    if (!stream.ok() || ::read(go[0], &byte, 1) != 1) return false;
    const absl::Status carried =
        stream->Pump(runtime::FileDescriptor(input[0]), runtime::FileDescriptor(output[1]), {.ends_with_peer = true});
    return absl::IsUnavailable(carried);
  });
  ends.server.Close();
  ::close(output[1]);
  EXPECT_EQ(StatusOf(sender), 0);
  EXPECT_EQ(::write(go[1], "", 1), 1);
  int waiting = 0;
  for (const Deadline deadline = Deadline::After(seconds(20)); waiting < room && !deadline.passed();) {
    ASSERT_EQ(::ioctl(output[0], FIONREAD, &waiting), 0);
  }
  EXPECT_EQ(waiting, room);
  size_t got = 0;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(output[0], buffer, sizeof buffer)) > 0;) got += static_cast<size_t>(n);
  EXPECT_EQ(got, 32u << 10);
  EXPECT_EQ(StatusOf(carrier), 0) << "a lost machine counts as one that has ended in order";
  for (const int fd : {go[0], go[1], input[0], input[1], output[0]}) ::close(fd);
}

TEST_F(SecureStreams, AnotherKeyIsRefusedOnBothSides) {
  Ends ends = Connected();
  const pid_t other = InAnotherProcess([&] {
    ends.server.Close();
    const auto stream =
        SecureStream::Connect(std::move(ends.client), MakeJoinKey("theirs"), Deadline::After(seconds(20)));
    return !stream.ok();
  });
  ends.client.Close();
  const auto stream = SecureStream::Accept(std::move(ends.server), MakeJoinKey("ours"), Deadline::After(seconds(20)));
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kUnauthenticated) << stream.status();
  EXPECT_EQ(StatusOf(other), 0);
}

TEST_F(SecureStreams, SilenceAndNoiseComeToAnEnd) {
  const JoinKey key = MakeJoinKey("shared");
  Ends silent = Connected();
  EXPECT_EQ(SecureStream::Accept(std::move(silent.server), key, Deadline::After(std::chrono::milliseconds(100)))
                .status()
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  Ends noisy = Connected();
  const string noise = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(::write(noisy.client.get(), noise.data(), noise.size()), static_cast<ssize_t>(noise.size()));
  EXPECT_FALSE(SecureStream::Accept(std::move(noisy.server), key, Deadline::After(seconds(20))).ok());
  Ends gone = Connected();
  gone.server.Close();
  EXPECT_EQ(SecureStream::Connect(std::move(gone.client), key, Deadline::After(seconds(20))).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace cohort::launcher
