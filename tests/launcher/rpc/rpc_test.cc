// Server and clients in one process, over real mutual TLS on the loopback interface.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/rpc/client.h"
#include "cohort/launcher/rpc/server.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"
#include "tests/launcher/rpc/patience.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::milliseconds;
using std::chrono::seconds;

v1::JobPlan MakePlan(uint32_t nodes, uint32_t ranks_per_node) {
  v1::JobPlan plan;
  plan.mutable_job()->set_on_failure("end");
  plan.mutable_job()->set_grace_ms(500);
  plan.set_join_timeout_ms(30'000);
  for (uint32_t node = 0; node < nodes; ++node) {
    v1::NodePlacement& placement = *plan.add_placements();
    placement.set_node(node);
    placement.set_name("node" + std::to_string(node));
    for (uint32_t i = 0; i < ranks_per_node; ++i) {
      placement.add_ranks()->set_rank(node * ranks_per_node + i);
      placement.mutable_ranks(static_cast<int>(i))->set_local_rank(i);
    }
  }
  return plan;
}

v1::NodeOffer MakeOffer(uint32_t node) {
  v1::NodeOffer offer;
  offer.set_protocol(kRendezvousProtocol);
  offer.set_node(node);
  offer.set_name("node" + std::to_string(node));
  return offer;
}

// Collects the messages that one client receives.
class Ear {
 public:
  RendezvousClient::Callbacks callbacks() {
    return {[this](v1::ToAgent message) {
              const runtime::MutexLock lock(mutex_);
              messages_.push_back(std::move(message));
              changed_.NotifyAll();
            },
            [this](const absl::Status& status) {
              const runtime::MutexLock lock(mutex_);
              lost_ = status;
              changed_.NotifyAll();
            }};
  }
  // The next message of a kind; others before it are dropped.
  std::optional<v1::ToAgent> Next(v1::ToAgent::KindCase kind) {
    const Deadline deadline = Deadline::After(kPatience);
    const runtime::MutexLock lock(mutex_);
    while (true) {
      while (!messages_.empty()) {
        v1::ToAgent message = std::move(messages_.front());
        messages_.pop_front();
        if (message.kind_case() == kind) return message;
      }
      if (lost_.has_value() || !changed_.Wait(mutex_, deadline)) {
        if (messages_.empty()) return std::nullopt;
      }
    }
  }
  std::optional<absl::Status> WaitUntilLost() {
    const Deadline deadline = Deadline::After(kPatience);
    const runtime::MutexLock lock(mutex_);
    while (!lost_.has_value() && changed_.Wait(mutex_, deadline)) {
    }
    return lost_;
  }
  bool lost() {
    const runtime::MutexLock lock(mutex_);
    return lost_.has_value();
  }

 private:
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::deque<v1::ToAgent> messages_;
  std::optional<absl::Status> lost_;
};

class RpcTest : public ::testing::Test {
 protected:
  RpcTest() : authority_(*JobAuthority::Create()) {}

  void StartServer(const v1::JobPlan& plan) {
    RendezvousServer::Options options;
    options.identity = *authority_.IssueAgent(0, /*hosts_rendezvous=*/true);
    auto server = RendezvousServer::Start(plan, options, [this](v1::JobReport report) {
      const runtime::MutexLock lock(mutex_);
      report_ = std::move(report);
      changed_.NotifyAll();
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  absl::StatusOr<std::unique_ptr<RendezvousClient>> Connect(uint32_t node, Ear* ear) {
    return RendezvousClient::Connect(server_->address(), *authority_.IssueAgent(node), MakeOffer(node),
                                     ear->callbacks(), Deadline::After(kPatience));
  }
  // Joins all nodes of a job and waits for their assignments.
  void JoinAll(uint32_t nodes) {
    for (uint32_t node = 0; node < nodes; ++node) {
      ears_.push_back(std::make_unique<Ear>());
      auto client = Connect(node, ears_.back().get());
      ASSERT_TRUE(client.ok()) << client.status();
      clients_.push_back(*std::move(client));
    }
    for (uint32_t node = 0; node < nodes; ++node) {
      const auto message = ears_[node]->Next(v1::ToAgent::kAssignment);
      ASSERT_TRUE(message.has_value()) << "node " << node;
      EXPECT_EQ(message->assignment().placement().node(), node);
      EXPECT_EQ(message->assignment().nodes_size(), static_cast<int>(nodes));
    }
  }
  // Reports a good end of all ranks of a node.
  void EndWell(uint32_t node, uint32_t ranks_per_node) {
    for (uint32_t i = 0; i < ranks_per_node; ++i) {
      v1::FromAgent message;
      message.mutable_exit()->set_rank(node * ranks_per_node + i);
      message.mutable_exit()->set_started(true);
      ASSERT_TRUE(clients_[node]->Send(message).ok());
    }
    v1::FromAgent done;
    done.mutable_done()->set_node(node);
    ASSERT_TRUE(clients_[node]->Send(done).ok());
  }
  std::optional<v1::JobReport> WaitForReport() {
    const Deadline deadline = Deadline::After(kPatience);
    const runtime::MutexLock lock(mutex_);
    while (!report_.has_value() && changed_.Wait(mutex_, deadline)) {
    }
    return report_;
  }
  int DialRaw() {
    const std::string& address = server_->address();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return fd;
  }

  JobAuthority authority_;
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::optional<v1::JobReport> report_;
  std::unique_ptr<RendezvousServer> server_;
  std::vector<std::unique_ptr<Ear>> ears_;
  std::vector<std::unique_ptr<RendezvousClient>> clients_;  // go before what they call
};

TEST_F(RpcTest, TwentyNodesMeetWorkAndPart) {
  constexpr uint32_t kNodes = 20;
  StartServer(MakePlan(kNodes, 2));
  JoinAll(kNodes);
  for (uint32_t node = 0; node < kNodes; ++node) {
    v1::FromAgent put;
    put.mutable_put()->set_request(1);
    put.mutable_put()->set_key("address/" + std::to_string(node));
    put.mutable_put()->set_value(std::string(1000, static_cast<char>('a' + node)));
    ASSERT_TRUE(clients_[node]->Send(put).ok());
    v1::FromAgent get;
    get.mutable_get()->set_request(2);
    get.mutable_get()->set_key("address/" + std::to_string((node + 1) % kNodes));
    get.mutable_get()->set_timeout_ms(30'000);
    ASSERT_TRUE(clients_[node]->Send(get).ok());
  }
  for (uint32_t node = 0; node < kNodes; ++node) {
    const auto reply = ears_[node]->Next(v1::ToAgent::kGet);
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->get().value(), std::string(1000, static_cast<char>('a' + (node + 1) % kNodes)));
  }
  for (uint32_t node = 0; node < kNodes; ++node) EndWell(node, 2);
  const auto report = WaitForReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->exit_code(), 0) << report->headline();
  for (uint32_t node = 0; node < kNodes; ++node) {
    EXPECT_TRUE(ears_[node]->Next(v1::ToAgent::kReport).has_value());
    const auto lost = ears_[node]->WaitUntilLost();
    ASSERT_TRUE(lost.has_value());
    EXPECT_TRUE(lost->ok()) << *lost;
  }
}

TEST_F(RpcTest, TheAddressSeenBecomesTheMasterAddress) {
  StartServer(MakePlan(1, 1));
  Ear ear;
  v1::NodeOffer offer = MakeOffer(0);
  offer.set_master_port(4711);
  const auto client = RendezvousClient::Connect(server_->address(), *authority_.IssueAgent(0), offer, ear.callbacks(),
                                                Deadline::After(kPatience));
  ASSERT_TRUE(client.ok()) << client.status();
  const auto message = ear.Next(v1::ToAgent::kAssignment);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->assignment().master_address(), "127.0.0.1");
  EXPECT_EQ(message->assignment().master_port(), 4711u);
}

TEST_F(RpcTest, AnotherJobsAgentIsNotLetIn) {
  StartServer(MakePlan(1, 1));
  const JobAuthority other = *JobAuthority::Create();
  Ear ear;
  // It trusts nobody of this job, nor does this job trust it.
  const auto stranger = RendezvousClient::Connect(server_->address(), *other.IssueAgent(0), MakeOffer(0),
                                                  ear.callbacks(), Deadline::After(kPatience));
  ASSERT_FALSE(stranger.ok());
  EXPECT_EQ(stranger.status().code(), absl::StatusCode::kUnauthenticated) << stranger.status();
  // It accepts the rendezvous' certificate, but the rendezvous does not accept its own.
  TlsIdentity half = *other.IssueAgent(0);
  half.ca_certificate = authority_.IssueAgent(0)->ca_certificate;
  const auto intruder =
      RendezvousClient::Connect(server_->address(), half, MakeOffer(0), ear.callbacks(), Deadline::After(kPatience));
  ASSERT_FALSE(intruder.ok());
  EXPECT_EQ(intruder.status().code(), absl::StatusCode::kUnauthenticated) << intruder.status();
  JoinAll(1);  // nobody was disturbed
}

TEST_F(RpcTest, AnAgentCannotServeAsTheRendezvous) {
  RendezvousServer::Options options;
  options.identity = *authority_.IssueAgent(0);
  auto server = RendezvousServer::Start(MakePlan(1, 1), options, nullptr);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  Ear ear;
  const auto client = Connect(0, &ear);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnauthenticated) << client.status();
  options.identity = *authority_.IssueAgent(0, /*hosts_rendezvous=*/true);
  server_ = *RendezvousServer::Start(MakePlan(1, 1), options, nullptr);
  const auto welcome = Connect(0, &ear);
  EXPECT_TRUE(welcome.ok()) << welcome.status();
}

TEST_F(RpcTest, AnAgentCannotClaimToBeAnotherNode) {
  StartServer(MakePlan(2, 1));
  Ear ear;
  const auto client = RendezvousClient::Connect(server_->address(), *authority_.IssueAgent(1), MakeOffer(0),
                                                ear.callbacks(), Deadline::After(kPatience));
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), absl::StatusCode::kPermissionDenied) << client.status();
  EXPECT_NE(std::string(client.status().message()).find("cohort-agent-1 claims to be cohort-agent-0"),
            std::string::npos)
      << client.status();
  JoinAll(2);
}

TEST_F(RpcTest, ASecondClaimantIsRefusedWithBothNamed) {
  StartServer(MakePlan(2, 1));
  Ear first;
  Ear second;
  const auto one = Connect(0, &first);
  ASSERT_TRUE(one.ok());
  const auto two = Connect(0, &second);
  const auto refusal = second.Next(v1::ToAgent::kRefused);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_NE(refusal->refused().find("node0 has already joined"), std::string::npos) << refusal->refused();
  EXPECT_FALSE(first.lost());
}

TEST_F(RpcTest, StrangersOnThePortDisturbNobody) {
  StartServer(MakePlan(2, 1));
  std::vector<int> strangers;
  for (int i = 0; i < 40; ++i) {
    const int fd = DialRaw();
    strangers.push_back(fd);
    std::string bytes;
    if (i % 4 == 1) bytes = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    if (i % 4 == 2) bytes = std::string("\x16\x03\x01\x02\x00\x01", 6);  // the beginning of a TLS hello
    if (i % 4 == 3) {
      for (int n = 0; n < 4000; ++n) bytes += static_cast<char>(n * 2654435761u >> 13);
    }
    if (!bytes.empty()) (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  JoinAll(2);
  for (int fd : strangers) close(fd);
  for (uint32_t node = 0; node < 2; ++node) EndWell(node, 1);
  const auto report = WaitForReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->exit_code(), 0);
}

TEST_F(RpcTest, AnAgentThatVanishesIsReportedWithItsRanks) {
  StartServer(MakePlan(3, 2));
  JoinAll(3);
  clients_[1].reset();  // ends without a word
  for (uint32_t node : {0u, 2u}) {
    const auto message = ears_[node]->Next(v1::ToAgent::kRanksLost);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->ranks_lost().ranks_size(), 2);
    EXPECT_NE(message->ranks_lost().text().find("node1"), std::string::npos) << message->ranks_lost().text();
    EXPECT_TRUE(ears_[node]->Next(v1::ToAgent::kStop).has_value());
  }
  EndWell(0, 2);
  EndWell(2, 2);
  const auto report = WaitForReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_NE(report->exit_code(), 0);
  EXPECT_NE(report->headline().find("the agent of node1 is gone"), std::string::npos) << report->headline();
}

TEST_F(RpcTest, AgentsAreToldAtOnceThatTheServerIsGone) {
  StartServer(MakePlan(2, 1));
  JoinAll(2);
  const auto before = std::chrono::steady_clock::now();
  server_.reset();
  for (auto& ear : ears_) {
    const auto lost = ear->WaitUntilLost();
    ASSERT_TRUE(lost.has_value());
    EXPECT_FALSE(lost->ok());
    EXPECT_NE(std::string(lost->message()).find("the rendezvous at 127.0.0.1:"), std::string::npos) << *lost;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(5));  // other hosts: 500 ms, times ten
  EXPECT_EQ(clients_[0]->Send(v1::FromAgent()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(RpcTest, AStopRequestReachesEveryAgent) {
  StartServer(MakePlan(2, 1));
  JoinAll(2);
  server_->OnEvent(StopRequested{"stopped by SIGINT", 130});
  for (uint32_t node = 0; node < 2; ++node) {
    const auto stop = ears_[node]->Next(v1::ToAgent::kStop);
    ASSERT_TRUE(stop.has_value());
    EXPECT_EQ(stop->stop().reason(), "stopped by SIGINT");
    EndWell(node, 1);
  }
  const auto report = WaitForReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->exit_code(), 130);
}

TEST_F(RpcTest, AGracefulCloseDeliversWhatWasQueued) {
  StartServer(MakePlan(1, 1));
  JoinAll(1);
  EndWell(0, 1);
  clients_[0]->Close(Deadline::After(kPatience));
  const auto report = WaitForReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->exit_code(), 0) << report->headline();
}

// Ranks are forked while gRPC's threads run: whatever they inherit must not keep the job's sockets open.
TEST_F(RpcTest, AChildProcessInheritsNoDescriptorOfOurs) {
  StartServer(MakePlan(2, 1));
  JoinAll(2);
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDOUT_FILENO);
    execl("/bin/ls", "ls", "-l", "/proc/self/fd", nullptr);
    _exit(127);
  }
  ASSERT_GT(child, 0);
  close(pipe_ends[1]);
  std::string listing;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) listing.append(buffer, buffer + n);
  close(pipe_ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(listing.find("socket:"), std::string::npos) << listing;
  EXPECT_EQ(listing.find("eventpoll"), std::string::npos) << listing;
  EXPECT_EQ(listing.find("eventfd"), std::string::npos) << listing;
  for (uint32_t node = 0; node < 2; ++node) EndWell(node, 1);  // and the parent's connections still work
  EXPECT_TRUE(WaitForReport().has_value());
}

TEST_F(RpcTest, ConnectingToNobodyEndsAtTheDeadline) {
  StartServer(MakePlan(1, 1));
  const std::string address = server_->address();
  server_.reset();
  Ear ear;
  const auto client = RendezvousClient::Connect(address, *authority_.IssueAgent(0), MakeOffer(0), ear.callbacks(),
                                                Deadline::After(milliseconds(300)));
  ASSERT_FALSE(client.ok());
  EXPECT_NE(std::string(client.status().message()).find(address), std::string::npos) << client.status();
}

TEST_F(RpcTest, APeerThatNeverSpeaksEndsConnectAtTheDeadline) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  Ear ear;
  const auto client =
      RendezvousClient::Connect("127.0.0.1:" + std::to_string(ntohs(at.sin_port)), *authority_.IssueAgent(0),
                                MakeOffer(0), ear.callbacks(), Deadline::After(milliseconds(300)));
  EXPECT_EQ(client.status().code(), absl::StatusCode::kDeadlineExceeded) << client.status();
  close(listener);
}

// Not even as another, whose certificate it does not have.
TEST_F(RpcTest, AnAgentThatHasJoinedMayNotOfferItselfAgain) {
  StartServer(MakePlan(2, 1));
  JoinAll(2);
  v1::FromAgent message;
  *message.mutable_join() = MakeOffer(1);
  message.mutable_join()->mutable_resume();
  ASSERT_TRUE(clients_[0]->Send(message).ok());
  const std::optional<absl::Status> why = ears_[0]->WaitUntilLost();
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->code(), absl::StatusCode::kFailedPrecondition) << *why;
  EXPECT_FALSE(ears_[1]->lost());
}

// They come faster than one at a time is written, so that most of them travel together.
TEST_F(RpcTest, ManyMessagesAtOnceAreDealtWithInOrder) {
  constexpr uint64_t kMessages = 3000;
  StartServer(MakePlan(1, 1));
  JoinAll(1);
  for (uint64_t i = 1; i <= kMessages; ++i) {
    v1::FromAgent put;
    put.mutable_put()->set_request(i);
    put.mutable_put()->set_key("key/" + std::to_string(i));
    put.mutable_put()->set_value(std::string(i % 100 == 0 ? 100'000 : 10, 'x'));  // some are too large for company
    ASSERT_TRUE(clients_[0]->Send(put).ok());
  }
  for (uint64_t i = 1; i <= kMessages; ++i) {
    const auto reply = ears_[0]->Next(v1::ToAgent::kPut);
    ASSERT_TRUE(reply.has_value());
    ASSERT_EQ(reply->put().request(), i);
  }
  EndWell(0, 1);
  ASSERT_TRUE(WaitForReport().has_value());
}

TEST_F(RpcTest, AMalformedBatchEndsTheConnection) {
  v1::FromAgent empty;
  empty.mutable_batch();
  v1::FromAgent with_offer = empty;
  with_offer.mutable_batch()->add_messages()->mutable_beat();
  *with_offer.mutable_batch()->add_messages()->mutable_join() = MakeOffer(1);
  v1::FromAgent nested = empty;
  *nested.mutable_batch()->add_messages() = with_offer;
  StartServer(MakePlan(4, 1));
  JoinAll(4);
  size_t node = 0;
  for (const v1::FromAgent& batch : {empty, with_offer, nested}) {
    ASSERT_TRUE(clients_[node]->Send(batch).ok());
    const std::optional<absl::Status> why = ears_[node++]->WaitUntilLost();
    ASSERT_TRUE(why.has_value());
    EXPECT_EQ(why->code(), absl::StatusCode::kFailedPrecondition) << *why;
  }
  EXPECT_FALSE(ears_[3]->lost());
}

TEST_F(RpcTest, TwoServersCannotShareAPort) {
  StartServer(MakePlan(1, 1));
  RendezvousServer::Options options;
  options.identity = *authority_.IssueAgent(0, /*hosts_rendezvous=*/true);
  options.port = std::stoi(server_->address().substr(server_->address().rfind(':') + 1));
  const auto second = RendezvousServer::Start(MakePlan(1, 1), options, nullptr);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RpcTest, AMessageOverTheLimitIsRefusedBeforeItIsSent) {
  StartServer(MakePlan(1, 1));
  JoinAll(1);
  v1::FromAgent message;
  message.mutable_put()->set_value(std::string(5 << 20, 'x'));
  EXPECT_EQ(clients_[0]->Send(message).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ears_[0]->lost());
}

}  // namespace
}  // namespace cohort::launcher
