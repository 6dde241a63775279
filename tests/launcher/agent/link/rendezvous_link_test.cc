// The way from one host of the rendezvous to the next, over real streams: three agents' links in one process, and a
// network between them that falls silent.
#include "cohort/launcher/agent/link/rendezvous_link.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/base/net/dial.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/mutex.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
constexpr std::chrono::seconds kPatience{60};

runtime::FileDescriptor Listen(std::string* address) {
  runtime::FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
  EXPECT_EQ(::listen(fd.get(), 16), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  *address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  return fd;
}

// Passes on what comes to its address, until the network falls silent: connections stay, and nothing arrives.
class Network {
 public:
  explicit Network(std::string to) : to_(std::move(to)), listener_(Listen(&address)), thread_([this] { Run(); }) {}
  ~Network() {
    over_ = true;
    thread_.join();
  }
  void FallSilent() { silent_ = true; }

  std::string address;

 private:
  void Run() {
    std::vector<std::pair<runtime::FileDescriptor, runtime::FileDescriptor>> pairs;
    while (!over_) {
      std::vector<pollfd> ready{{listener_.get(), POLLIN, 0}};
      for (const auto& [a, b] : pairs) {
        ready.push_back({a.get(), POLLIN, 0});
        ready.push_back({b.get(), POLLIN, 0});
      }
      if (silent_) ready.clear();
      ::poll(ready.data(), ready.size(), 10);
      for (size_t i = 1; i < ready.size(); ++i) {
        auto& [a, b] = pairs[(i - 1) / 2];
        if (ready[i].revents == 0) continue;
        char bytes[16384];
        const ssize_t n = ::read(ready[i].fd, bytes, sizeof bytes);
        const int other = i % 2 == 1 ? b.get() : a.get();
        if (n <= 0) {
          ::shutdown(other, SHUT_WR);
          (i % 2 == 1 ? a : b).Close();
          continue;
        }
        for (ssize_t done = 0; done < n;) {
          const ssize_t sent = ::send(other, bytes + done, static_cast<size_t>(n - done), MSG_NOSIGNAL);
          if (sent <= 0) break;
          done += sent;
        }
      }
      if (ready.empty() || ready[0].revents == 0) continue;
      runtime::FileDescriptor from(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      absl::StatusOr<Connection> to = ConnectToFirst(to_, Deadline::After(kPatience));
      if (to.ok()) pairs.emplace_back(std::move(from), std::move(to->socket));
    }
  }

  const std::string to_;
  runtime::FileDescriptor listener_;
  std::atomic<bool> silent_ = false;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

class Node {
 public:
  explicit Node(v1::NodeStart start) : start_(std::move(start)), thread_([this] { loop_.Run(); }) {}
  ~Node() {
    OnLoop([this] {
      link_.Close();
      loop_.Quit();
    });
    thread_.join();
  }

  std::string Host() {
    return OnLoop([this] { return *link_.Host(start_); });
  }
  std::string TakeOver(const v1::TakeOver& order) {
    return OnLoop([this, &order] { return *link_.TakeOver(order); });
  }
  void Join(const std::string& address) {
    const absl::Status joined = OnLoop([this, &address] { return link_.Join(start_, address, nullptr); });
    EXPECT_TRUE(joined.ok()) << joined;
  }
  void MoveTo(const v1::NewHost& host) {
    OnLoop([this, &host] { link_.MoveTo(host); });
  }
  void Abandon() {
    OnLoop([this] { link_.Abandon(); });
  }
  void Say(const v1::FromAgent& message) {
    OnLoop([this, &message] { link_.Send(message); });
  }
  void NoteStandbys(const v1::Standbys& standbys) {
    OnLoop([this, &standbys] { link_.hosted()->OnEvent(StandbysNoted{standbys}); });
  }
  // Waits until there are `count` messages of a kind.
  bool WaitFor(v1::ToAgent::KindCase kind, int count) {
    return WaitUntil([this, kind, count] { return Count(kind) >= count; });
  }
  bool WaitForSilence() {
    return WaitUntil([this] { return !silent_.empty(); });
  }
  std::optional<v1::FromNode> WaitForNews(v1::FromNode::KindCase kind) {
    std::optional<v1::FromNode> found;
    WaitUntil([&] {
      for (const v1::FromNode& news : news_) {
        if (news.kind_case() == kind) found = news;
      }
      return found.has_value();
    });
    return found;
  }
  int CountNow(v1::ToAgent::KindCase kind) {
    const runtime::MutexLock lock(mutex_);
    return Count(kind);
  }

 private:
  // On the loop's thread, and waits for it.
  template <typename Function>
  auto OnLoop(Function what) -> decltype(what()) {
    std::packaged_task<decltype(what())()> task(what);
    auto result = task.get_future();
    loop_.Post([&task] { task(); });
    return result.get();
  }
  void On(const RendezvousLink::Message& event) { Note(messages_, *event.message); }
  void On(const RendezvousLink::Lost& event) { Note(lost_, event.why); }
  void On(const RendezvousLink::HostSilent& event) { Note(silent_, event.term); }
  void On(const RendezvousLink::News& event) { Note(news_, event.news); }
  void On(const RendezvousLink::Finished&) {}
  template <typename T>
  void Note(std::vector<T>& notes, const T& note) {
    const runtime::MutexLock lock(mutex_);
    notes.push_back(note);
    changed_.NotifyAll();
  }
  int Count(v1::ToAgent::KindCase kind) const {
    int count = 0;
    for (const v1::ToAgent& message : messages_) count += message.kind_case() == kind ? 1 : 0;
    return count;
  }
  template <typename Condition>
  bool WaitUntil(Condition holds) {
    const Deadline deadline = Deadline::After(kPatience);
    const runtime::MutexLock lock(mutex_);
    while (!holds()) {
      if (!changed_.Wait(mutex_, deadline)) return holds();
    }
    return true;
  }

  const v1::NodeStart start_;
  EventLoop loop_;
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::vector<v1::ToAgent> messages_;
  std::vector<absl::Status> lost_;
  std::vector<uint64_t> silent_;
  std::vector<v1::FromNode> news_;
  RendezvousLink link_{
      &loop_, [this](const RendezvousLink::Event& event) { std::visit([this](const auto& it) { On(it); }, event); }};
  std::thread thread_;
};

v1::FromAgent Put(uint64_t request) {
  v1::FromAgent message;
  message.mutable_put()->set_request(request);
  message.mutable_put()->set_key("key " + std::to_string(request));
  return message;
}

v1::NodeStart StartOf(const JobAuthority& authority, uint32_t node) {
  const TlsIdentity identity = *authority.IssueAgent(node, /*hosts_rendezvous=*/node <= 1);
  v1::NodeStart start;
  start.set_node(node);
  start.set_name("node" + std::to_string(node));
  start.set_standbys(1);
  start.set_ca_certificate(identity.ca_certificate);
  start.set_certificate(identity.certificate);
  start.set_private_key(identity.private_key);
  if (node > 0) return start;
  *start.mutable_plan() = MakePlan(3, 1, "restart");
  start.mutable_plan()->mutable_job()->set_max_restarts(3);
  start.mutable_plan()->set_min_nodes(1);
  start.mutable_plan()->set_standbys(1);
  return start;
}

TEST(RendezvousLink, FollowsTheRendezvousToAnotherHostWhenTheFirstFallsSilent) {
  const JobAuthority authority = *JobAuthority::Create();
  Node first(StartOf(authority, 0)), second(StartOf(authority, 1)), third(StartOf(authority, 2));
  const std::string there = first.Host();
  Network network(there);
  first.Join(there);
  second.Join(network.address);
  const auto wanted = first.WaitForNews(v1::FromNode::kStandbys);
  ASSERT_TRUE(wanted.has_value());
  ASSERT_EQ(wanted->standbys().agents_size(), 1);
  first.NoteStandbys(wanted->standbys());
  third.Join(network.address);
  for (Node* const node : {&first, &second, &third}) ASSERT_TRUE(node->WaitFor(v1::ToAgent::kAssignment, 1));
  third.Say(Put(1));
  ASSERT_TRUE(third.WaitFor(v1::ToAgent::kPut, 1));

  network.FallSilent();
  third.Say(Put(2));
  first.Say(Put(3));  // to a host that can act on nothing any more
  ASSERT_TRUE(second.WaitForSilence());
  EXPECT_EQ(first.CountNow(v1::ToAgent::kPut), 0);
  v1::TakeOver order;
  order.set_term(2);
  v1::NewHost host;
  host.set_term(2);
  host.set_agent(1);
  host.set_addresses(second.TakeOver(order));
  // The first was only cut off: it goes on as an agent like the others.
  for (Node* const node : {&first, &second, &third}) node->MoveTo(host);
  third.Say(Put(4));
  second.Say(Put(5));
  ASSERT_TRUE(third.WaitFor(v1::ToAgent::kPut, 3));
  ASSERT_TRUE(second.WaitFor(v1::ToAgent::kPut, 1));
  ASSERT_TRUE(first.WaitFor(v1::ToAgent::kPut, 1));
  EXPECT_EQ(third.CountNow(v1::ToAgent::kPut), 3);
  for (Node* const node : {&first, &second, &third}) EXPECT_EQ(node->CountNow(v1::ToAgent::kAssignment), 1);
}

// A machine has 127.0.0.2 as well.
TEST(RendezvousLink, ListensOnTheInterfaceThatWasNamedAndNowhereElse) {
  v1::NodeStart start = StartOf(*JobAuthority::Create(), 0);
  start.set_across_hosts(true);
  start.set_interface("127.0.0.0/8");
  Node node(start);
  const std::string address = node.Host();
  ASSERT_TRUE(address.starts_with("127.0.0.1:")) << address;
  EXPECT_TRUE(ConnectToFirst(address, Deadline::After(kPatience)).ok());
  const std::string other = "127.0.0.2" + address.substr(address.find(':'));
  EXPECT_FALSE(ConnectToFirst(other, Deadline::After(kPatience)).ok());
}

// The first address of the list leads to another job, as those of private networks may.
TEST(RendezvousLink, PassesOverTheAddressOfAnotherJob) {
  const JobAuthority authority = *JobAuthority::Create();
  const JobAuthority others = *JobAuthority::Create();
  Node first(StartOf(authority, 0)), second(StartOf(authority, 1)), third(StartOf(authority, 2));
  Node stranger(StartOf(others, 0));
  const std::string there = first.Host();
  const std::string elsewhere = stranger.Host();
  first.Join(there);
  second.Join(there);
  const auto wanted = first.WaitForNews(v1::FromNode::kStandbys);
  ASSERT_TRUE(wanted.has_value());
  first.NoteStandbys(wanted->standbys());
  third.Join(elsewhere + "," + there);
  for (Node* const node : {&first, &second, &third}) ASSERT_TRUE(node->WaitFor(v1::ToAgent::kAssignment, 1));

  v1::TakeOver order;
  order.set_term(2);
  v1::NewHost host;
  host.set_term(2);
  host.set_agent(1);
  host.set_addresses(elsewhere + "," + second.TakeOver(order));
  for (Node* const node : {&first, &second, &third}) node->MoveTo(host);
  third.Say(Put(1));
  EXPECT_TRUE(third.WaitFor(v1::ToAgent::kPut, 1));
}

// Abandoned while it dials the next host: what comes of that counts no more, nor does a host that comes later.
TEST(RendezvousLink, EndsWhenAbandonedOnItsWayToAnotherHost) {
  const JobAuthority authority = *JobAuthority::Create();
  Node first(StartOf(authority, 0)), second(StartOf(authority, 1)), third(StartOf(authority, 2));
  const std::string there = first.Host();
  first.Join(there);
  second.Join(there);
  const auto wanted = first.WaitForNews(v1::FromNode::kStandbys);
  ASSERT_TRUE(wanted.has_value());
  first.NoteStandbys(wanted->standbys());
  third.Join(there);
  for (Node* const node : {&first, &second, &third}) ASSERT_TRUE(node->WaitFor(v1::ToAgent::kAssignment, 1));

  std::string silent;
  const runtime::FileDescriptor listener = Listen(&silent);
  v1::NewHost host;
  host.set_term(2);
  host.set_agent(7);
  host.set_addresses(silent);
  third.MoveTo(host);
  pollfd dialled{listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&dialled, 1, 30'000), 1);
  third.Abandon();
  third.Abandon();
  host.set_term(3);
  host.set_agent(0);
  host.set_addresses(there);
  third.MoveTo(host);
  third.Say(Put(1));
  first.Say(Put(2));
  ASSERT_TRUE(first.WaitFor(v1::ToAgent::kPut, 1));
  EXPECT_EQ(third.CountNow(v1::ToAgent::kPut), 0);
}

TEST(RendezvousLinkDeathTest, ASecondJoinIsCaught) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto join_twice = [] {
    EventLoop loop;
    RendezvousLink link(&loop, [](const RendezvousLink::Event&) {});
    v1::NodeStart start;
    *start.mutable_plan() = MakePlan(1, 1);
    const std::string address = *link.Host(start);
    (void)link.Join(start, address, nullptr);
    (void)link.Join(start, address, nullptr);
  };
  EXPECT_DEATH(join_twice(), "MayFollow");
}

TEST(RendezvousLink, LeavesAHostThatDoesNotAnswerWhenCalledAway) {
  const JobAuthority authority = *JobAuthority::Create();
  Node first(StartOf(authority, 0)), second(StartOf(authority, 1)), third(StartOf(authority, 2));
  const std::string there = first.Host();
  first.Join(there);
  second.Join(there);
  const auto wanted = first.WaitForNews(v1::FromNode::kStandbys);
  ASSERT_TRUE(wanted.has_value());
  first.NoteStandbys(wanted->standbys());
  third.Join(there);
  for (Node* const node : {&first, &second, &third}) ASSERT_TRUE(node->WaitFor(v1::ToAgent::kAssignment, 1));

  v1::TakeOver order;  // from here on the first acts on nothing, not on the third's leaving either
  order.set_term(3);
  const std::string second_address = second.TakeOver(order);
  std::string silent;
  const runtime::FileDescriptor listener = Listen(&silent);
  v1::NewHost host;
  host.set_term(2);
  host.set_agent(7);
  host.set_addresses(silent);
  third.MoveTo(host);
  pollfd dialled{listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&dialled, 1, 30'000), 1);
  host.set_term(3);
  host.set_agent(1);
  host.set_addresses(second_address);
  for (Node* const node : {&first, &second, &third}) node->MoveTo(host);
  third.Say(Put(1));
  ASSERT_TRUE(third.WaitFor(v1::ToAgent::kPut, 1));
}

}  // namespace
}  // namespace cohort::launcher
