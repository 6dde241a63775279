// Orders that a dlaunch in its senses does not send: an agent answers each in words, and ends.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/base/message_pipe.h"
#include "cohort/launcher/base/pipe.h"
#include "cohort/v1/rendezvous.grpc.pb.h"
#include "cohort/v1/rendezvous.pb.h"
#include "tests/launcher/control/driver.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;

// An agent whose dlaunch is the test.
class AgentOrders : public ::testing::Test {
 protected:
  AgentOrders() {
    if (!pipe_.Open()) std::abort();
    ::signal(SIGPIPE, SIG_IGN);
    agent_ = std::make_unique<DlaunchProcess>(std::vector<string>{"agent", "--node=0"},
                                              DlaunchSurroundings{.input = pipe_.read_end.get()});
    pipe_.read_end.Close();
  }

  // In one write, so that the agent reads them together.
  void Tell(const std::vector<v1::ToNode>& orders) {
    string bytes;
    for (const v1::ToNode& order : orders) AppendDelimited(order, &bytes);
    EXPECT_EQ(::write(pipe_.write_end.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  void HangUp() { pipe_.write_end.Close(); }

  // All that it has said.
  std::vector<v1::FromNode> News() const {
    MessageReader reader;
    reader.Append(agent_->out().data(), agent_->out().size());
    std::vector<v1::FromNode> news;
    for (v1::FromNode message; reader.Next(&message).value_or(false);) news.push_back(message);
    return news;
  }
  // Its reasons to give up, a line each.
  string Failures() const {
    string failures;
    for (const v1::FromNode& message : News()) failures += message.has_failed() ? message.failed() + "\n" : "";
    return failures;
  }

  const TemporaryFolder folder_;
  Pipe pipe_;
  std::unique_ptr<DlaunchProcess> agent_;
};

v1::ToNode StartAlone(const string& program) {
  v1::ToNode order;
  v1::NodeStart& start = *order.mutable_start();
  start.set_name("node0");
  start.set_host_rendezvous(true);
  *start.mutable_plan() = MakePlan(1, 1);
  v1::JobSpec& job = *start.mutable_plan()->mutable_job();
  job.set_working_directory("/");
  for (const string& word : {string("/bin/sh"), string("-c"), program}) {
    (job.programs_size() > 0 ? job.mutable_programs(0) : job.add_programs())->add_command(word);
  }
  return order;
}

TEST_F(AgentOrders, ASecondStartIsRefusedInWords) {
  Tell({StartAlone("exec sleep 1000"), StartAlone("exec sleep 1000")});
  EXPECT_EQ(agent_->Wait(), 125) << agent_->err();
  EXPECT_EQ(Failures(), "dlaunch sent a second start\n");
  EXPECT_EQ(agent_->WaitUntilGone(std::chrono::seconds(10)), "");
}

TEST_F(AgentOrders, NothingIsDoneOnceTheAgentHasGivenUp) {
  v1::ToNode stop;
  stop.mutable_stop()->set_reason("no more");
  Tell({stop, StartAlone("exec sleep 1000"), stop});
  EXPECT_EQ(agent_->Wait(), 125) << agent_->err();
  EXPECT_EQ(Failures(), "told to stop before its ranks had started\n");
  for (const v1::FromNode& message : News()) EXPECT_FALSE(message.has_listening()) << message.DebugString();
}

// A rendezvous that ends the job, and then begins an epoch.
class LateRendezvous : public v1::Rendezvous::Service {
 public:
  explicit LateRendezvous(v1::Assignment assignment) : assignment_(std::move(assignment)) {}

  grpc::Status Join(grpc::ServerContext*, grpc::ServerReaderWriter<v1::ToAgent, v1::FromAgent>* stream) override {
    v1::FromAgent message;
    v1::ToAgent report, begin;
    report.mutable_report()->set_culprit_rank(-1);
    *begin.mutable_assignment() = assignment_;
    said_ = stream->Read(&message) && stream->Write(report) && stream->Write(begin);
    while (stream->Read(&message)) {
    }
    return grpc::Status::OK;
  }
  bool said() const { return said_; }

 private:
  const v1::Assignment assignment_;
  std::atomic<bool> said_ = false;
};

// A standby stays for a while after the report.
TEST_F(AgentOrders, NoEpochBeginsAfterTheReport) {
  v1::ToNode order = StartAlone("exec touch " + folder_.path() + "/ran");
  v1::Assignment assignment;
  assignment.set_epoch(1);
  assignment.set_world_size(1);
  *assignment.mutable_job() = order.start().plan().job();
  *assignment.mutable_placement() = order.start().plan().placements(0);
  assignment.mutable_placement()->set_node(1);
  LateRendezvous rendezvous(assignment);

  const absl::StatusOr<JobAuthority> authority = JobAuthority::Create();
  const TlsIdentity host = *authority->IssueAgent(0, /*hosts_rendezvous=*/true), own = *authority->IssueAgent(1);
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_root_certs = host.ca_certificate;
  tls.pem_key_cert_pairs.push_back({host.private_key, host.certificate});
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(tls), &port);
  builder.RegisterService(&rendezvous);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  v1::NodeStart& start = *order.mutable_start();
  start.set_node(1);
  start.set_host_rendezvous(false);
  start.clear_plan();
  start.set_standbys(1);
  start.set_rendezvous_address("127.0.0.1:" + std::to_string(port));
  start.set_ca_certificate(own.ca_certificate);
  start.set_certificate(own.certificate);
  start.set_private_key(own.private_key);
  Tell({order});
  EXPECT_TRUE(agent_->WaitUntil([&] { return rendezvous.said(); })) << agent_->err();
  std::this_thread::sleep_for(std::chrono::seconds(1));  // in which a rank would have started
  HangUp();
  EXPECT_EQ(agent_->Wait(), 0) << agent_->err();
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/ran"));
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace cohort::launcher
