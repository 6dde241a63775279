// An agent of two ranks, spoken to by hand over its socket.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <variant>

#include "cohort/launcher/agent/rank/rank_service.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/segment/agent_protocol.h"

namespace cohort::launcher {

// A rank's end of the socket.
class Client {
 public:
  explicit Client(const std::string& address) : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, address.data() + 1, address.size() - 1);
    connected_ = ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&name),
                           static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size())) == 0;
  }
  bool connected() const { return connected_; }
  void SendBytes(const std::string& bytes) { (void)!::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void Send(const v1::RankMessage& message) { SendBytes(message.SerializeAsString()); }
  void SayHello(uint32_t local_rank, uint32_t protocol = runtime::kAgentProtocol, bool records = false) {
    v1::RankMessage message;
    message.mutable_hello()->set_protocol(protocol);
    message.mutable_hello()->set_local_rank(local_rank);
    message.mutable_hello()->set_records(records);
    Send(message);
  }
  void SayThatItRecords(uint32_t local_rank) { SayHello(local_rank, runtime::kAgentProtocol, true); }
  // The next message; KIND_NOT_SET when the agent has closed, or says nothing for a long time.
  v1::AgentMessage Receive() {
    pollfd ready{fd_.get(), POLLIN, 0};
    v1::AgentMessage result;
    if (::poll(&ready, 1, 30'000) <= 0) return result;
    std::string packet(1 << 16, '\0');
    iovec data{packet.data(), packet.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    if (n <= 0) return result;
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && header->cmsg_type == SCM_RIGHTS) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header), sizeof received);
      segment_ = runtime::FileDescriptor(received);
    }
    result.ParseFromArray(packet.data(), static_cast<int>(n));
    return result;
  }
  runtime::FileDescriptor& segment() { return segment_; }

 private:
  runtime::FileDescriptor fd_;
  runtime::FileDescriptor segment_;
  bool connected_ = false;
};

// An agent of two ranks, whose rendezvous is a key-value store in this test.
class RankServiceTest : public testing::Test {
 protected:
  RankServiceTest() : address_(NewSocketAddress()) {
    assignment_.set_epoch(1);
    assignment_.set_world_size(1002);
    assignment_.mutable_job()->set_job_id("job-1");
    assignment_.mutable_job()->set_job_secret(std::string(32, 's'));
    assignment_.mutable_placement()->set_node(1);
    for (int i = 0; i < 2; ++i) {
      v1::RankPlacement* rank = assignment_.mutable_placement()->add_ranks();
      rank->set_rank(1 + i);
      rank->set_local_rank(i);
    }
    for (int i = 0; i < 1000; ++i) {
      v1::Node* node = assignment_.add_nodes();
      node->set_index(i);
      node->set_name("node" + std::to_string(i) + "." + std::string(200, 'n'));  // DNS allows 253: pages stay packets
    }
    service_ = std::make_unique<RankService>(
        &loop_, assignment_, "127.0.0.1",
        RankService::Callbacks{.to_rendezvous = [this](const v1::FromAgent& message) { Answer(message); },
                               .to_agent = {},
                               .group_of = [this](int local_rank) { return local_rank == 0 ? ::getpid() : stranger_; },
                               .on_event = [this](const RankService::Event& event) { Count(event); }});
    EXPECT_TRUE(service_->Start(address_).ok());
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~RankServiceTest() override {
    loop_.Post([this] { loop_.Quit(); });
    thread_.join();
  }
  void Count(const RankService::Event& event) {
    if (std::holds_alternative<RankService::Goodbye>(event)) ++goodbyes_;
    if (std::holds_alternative<RankService::EpochLeft>(event)) ++staying_;
    if (std::holds_alternative<RankService::Vanished>(event)) ++vanished_;
    if (std::holds_alternative<RankService::Hello>(event)) ++hellos_;
    if (std::holds_alternative<RankService::Recorded>(event)) ++recorded_;
  }
  void Answer(const v1::FromAgent& message) {
    if (message.has_put()) {
      ++puts_;
      v1::PutReply reply;
      reply.set_request(message.put().request());
      service_->store().OnPutReply(reply);
    }
    if (message.has_get()) {
      ++gets_;
      v1::GetReply reply;
      reply.set_request(message.get().request());
      reply.set_found(message.get().key() != "absent");
      reply.set_value("value of " + message.get().key());
      service_->store().OnGetReply(reply);
    }
    if (message.has_stall()) ++stalls_;
    if (message.has_group_failure()) ++failures_;
    if (message.has_preemption_step()) {
      EXPECT_EQ(message.preemption_step().epoch(), assignment_.epoch());
      steps_ = message.preemption_step().step();
    }
    if (message.has_preempted()) {
      EXPECT_EQ(message.preempted().epoch(), assignment_.epoch());
      stopped_before_ = message.preempted().step();
    }
  }
  v1::GetReply Get(Client* client, const std::string& key, uint64_t request) {
    v1::RankMessage message;
    message.mutable_get()->set_request(request);
    message.mutable_get()->set_key(key);
    client->Send(message);
    return client->Receive().get();
  }

  const std::string address_;
  pid_t stranger_ = 1;  // a process that we do not descend from by group or parent within reach
  v1::Assignment assignment_;
  EventLoop loop_;
  std::unique_ptr<RankService> service_;
  std::atomic<int> gets_{0}, puts_{0}, stalls_{0}, goodbyes_{0}, vanished_{0}, staying_{0}, failures_{0};
  std::atomic<int> hellos_{0}, recorded_{0};
  std::atomic<uint64_t> steps_{0};           // the latest answer to a notice
  std::atomic<uint64_t> stopped_before_{0};  // the step
  std::thread thread_;
};

}  // namespace cohort::launcher
