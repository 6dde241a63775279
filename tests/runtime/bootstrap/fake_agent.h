// An agent in a thread of the test: serves one rank, as its script says.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/segment.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::runtime::testing {

class FakeAgent {
 public:
  // Called in the agent's thread for every message; answers with Send.
  using Script = std::function<void(FakeAgent&, const v1::RankMessage&)>;

  FakeAgent(int local_ranks, Script script) : script_(std::move(script)) {
    static std::atomic<int> count{0};
    address_ = "@cohort-test-" + std::to_string(getpid()) + "-" + std::to_string(count.fetch_add(1));
    segment_ = *Segment::Create({.local_ranks = local_ranks, .epoch = 3, .job_id = "job"});
    listener_ = FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, address_.data() + 1, address_.size() - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
    if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
        listen(listener_.get(), 8) != 0) {
      std::abort();
    }
    thread_ = std::thread([this] { Main(); });
  }
  ~FakeAgent() {
    shutdown(listener_.get(), SHUT_RDWR);
    Hang();
    thread_.join();
  }

  const std::string& address() const { return address_; }
  Segment& segment() { return *segment_; }

  // Any thread, once the rank has connected.
  void Send(const v1::AgentMessage& message, bool with_segment = false) {
    SendBytes(message.SerializeAsString(), with_segment);
  }
  // As an agent sends news: the message, then the event.
  void Tell(const v1::AgentMessage& message, int local_rank) {
    Send(message);
    segment_->control(local_rank).events.fetch_add(1);
    segment_->Wake(local_rank);
  }
  void SendBytes(const std::string& bytes, bool with_segment = false) {
    iovec data{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (with_segment) {
      header.msg_control = control;
      header.msg_controllen = sizeof control;
      cmsghdr* part = CMSG_FIRSTHDR(&header);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = segment_->fd();
      std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
    }
    sendmsg(peer_.load(), &header, MSG_NOSIGNAL);
  }
  // Ends the connection, as the agent's death does.
  void Hang() {
    if (peer_.load() >= 0) shutdown(peer_.load(), SHUT_RDWR);
  }
  // A welcome to local rank `local_rank` of one node with all ranks.
  v1::AgentMessage Welcome(int local_rank) {
    v1::AgentMessage message;
    v1::Welcome* welcome = message.mutable_welcome();
    const auto ranks = static_cast<uint32_t>(segment_->local_ranks());
    welcome->set_protocol(kAgentProtocol);
    welcome->set_job_id("job");
    welcome->set_epoch(3);
    welcome->set_rank(static_cast<uint32_t>(local_rank));
    welcome->set_world_size(ranks);
    welcome->set_local_rank(static_cast<uint32_t>(local_rank));
    welcome->set_local_world_size(ranks);
    welcome->set_node_count(1);
    v1::Node* node = welcome->add_nodes();
    node->set_name("node0");
    node->set_rank_count(ranks);
    welcome->set_job_secret(std::string(32, 's'));
    return message;
  }

 private:
  void Main() {
    const int peer = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (peer < 0) return;
    peer_.store(peer);
    std::vector<char> buffer(1 << 17);
    while (true) {
      const ssize_t bytes = recv(peer, buffer.data(), buffer.size(), 0);
      if (bytes <= 0) break;
      v1::RankMessage message;
      if (message.ParseFromArray(buffer.data(), static_cast<int>(bytes))) script_(*this, message);
    }
    peer_.store(-1);
    close(peer);
  }

  Script script_;
  std::string address_;
  std::unique_ptr<Segment> segment_;
  FileDescriptor listener_;
  std::atomic<int> peer_{-1};
  std::thread thread_;
};

}  // namespace cohort::runtime::testing
