// Strangers hold more connections to the rendezvous than its process may have descriptors.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/rpc/client.h"
#include "cohort/launcher/rpc/server.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/launcher/rpc/patience.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;

constexpr rlim_t kDescriptors = 256;
constexpr int kConnections = 2 * static_cast<int>(kDescriptors);

// A process of its own, whose descriptors do not count here; only system calls, since it is forked from threads.
class Flood {
 public:
  // `first_bytes`: what each says; empty for none.
  Flood(int port, const std::string& first_bytes, rlim_t descriptors) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ready[0]);
      const rlimit limit{descriptors, descriptors};
      ::setrlimit(RLIMIT_NOFILE, &limit);
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      to.sin_port = htons(static_cast<uint16_t>(port));
      for (int i = 0; i < kConnections; ++i) {
        const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) ::_exit(1);
        (void)!::send(fd, first_bytes.data(), first_bytes.size(), MSG_NOSIGNAL);
      }
      (void)!::write(ready[1], "", 1);
      while (true) ::pause();
    }
    ::close(ready[1]);
    const runtime::FileDescriptor reader(ready[0]);
    char byte = 0;
    EXPECT_EQ(::read(reader.get(), &byte, 1), 1) << "the strangers did not get all of their connections";
  }
  ~Flood() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

 private:
  pid_t pid_ = -1;
};

struct Strangers {
  const char* name;
  std::string first_bytes;
  std::vector<std::string> hosts;  // that the rendezvous listens on
};

class FloodTest : public ::testing::TestWithParam<Strangers> {
 protected:
  absl::StatusOr<std::unique_ptr<RendezvousClient>> Join(uint32_t node) {
    v1::NodeOffer offer;
    offer.set_protocol(kRendezvousProtocol);
    offer.set_node(node);
    RendezvousClient::Callbacks callbacks{[](const v1::ToAgent&) {}, [this](const absl::Status&) { ++lost_; }};
    return RendezvousClient::Connect("127.0.0.1:" + std::to_string(port_), *authority_.IssueAgent(node), offer,
                                     callbacks, Deadline::After(kPatience));
  }
  void StartServer() {
    v1::JobPlan plan;
    plan.mutable_job()->set_on_failure("end");
    plan.set_join_timeout_ms(60'000);
    for (uint32_t node = 0; node < 4; ++node) {
      v1::NodePlacement& placement = *plan.add_placements();
      placement.set_node(node);
      placement.set_name("node" + std::to_string(node));
      placement.add_ranks()->set_rank(node);
    }
    RendezvousServer::Options options;
    options.identity = *authority_.IssueAgent(0, /*hosts_rendezvous=*/true);
    options.hosts = GetParam().hosts;
    auto server = RendezvousServer::Start(plan, options, nullptr);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = PortOf(server_->address());
  }

  const JobAuthority authority_ = *JobAuthority::Create();
  int port_ = 0;
  std::atomic<int> lost_ = 0;
  std::unique_ptr<RendezvousServer> server_;
};

TEST_P(FloodTest, AgentsAreAnsweredBeforeDuringAndAfterAFlood) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < kConnections + 50) GTEST_SKIP() << "ulimit -Hn is " << limit.rlim_max;
  const rlimit low{kDescriptors, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  ASSERT_NO_FATAL_FAILURE(StartServer());
  const auto before = Join(0);
  EXPECT_TRUE(before.ok()) << before.status();
  auto flood = std::make_unique<Flood>(port_, GetParam().first_bytes, limit.rlim_max);
  const auto during = Join(1);
  EXPECT_TRUE(during.ok()) << during.status();
  auto more = std::make_unique<Flood>(port_, GetParam().first_bytes, limit.rlim_max);
  flood.reset();
  more.reset();
  const auto after = Join(2);
  EXPECT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(lost_, 0) << "who has joined is not ended for strangers";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// Silent ones, and half of a TLS greeting.
std::string Half() { return {"\x16\x03\x01\x02\x00\x01", 6}; }
INSTANTIATE_TEST_SUITE_P(All, FloodTest,
                         ::testing::Values(Strangers{"Silent", "", {"127.0.0.1"}},
                                           Strangers{"Greeting", Half(), {"127.0.0.1"}},
                                           Strangers{"GreetingOnAllAddresses", Half(), {}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace cohort::launcher
