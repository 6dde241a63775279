// Strangers at every rank's port: garbage, halves of handshakes, wrong secrets, floods, and replays of all that two
// ranks have said to each other. The ranks go on as if nobody were there.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/comm/transport/tcp/tcp_transport.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/support/nightly.h"
#include "tests/support/transport_world.h"

namespace cohort::comm {
namespace {

using runtime::Deadline;
using runtime::FileDescriptor;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRanks = 3;

std::string KeyOf(int rank) { return "tcp/address/2/" + std::to_string(rank); }
std::string ProxyKeyOf(int rank) { return "proxy/" + std::to_string(rank); }

// Ranks see each other at the proxy's ports.
class ProxiedStore : public runtime::KeyValueStore {
 public:
  explicit ProxiedStore(SharedStore* store) : store_(store) {}
  absl::Status Put(std::string_view key, std::string_view value) override { return store_->Put(key, value); }
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    auto text = store_->Get(key, deadline);
    if (!text.ok() || !key.starts_with("tcp/")) return text;
    auto published = tcp::ParsePublished(*text);
    auto proxy = store_->Get(ProxyKeyOf(std::atoi(std::string(key.substr(key.rfind('/') + 1)).c_str())), deadline);
    if (!published.ok() || !proxy.ok()) return absl::DeadlineExceededError("no proxy yet");
    published->addresses = {*proxy};
    return tcp::ToText(*published);
  }

 private:
  SharedStore* const store_;
};

FileDescriptor ConnectTo(const std::string& address) {
  const auto parsed = tcp::ParseAddress(address);
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit = {1, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (!parsed.ok() || connect(socket.get(), reinterpret_cast<const sockaddr*>(&parsed->storage), parsed->bytes) != 0) {
    return FileDescriptor();
  }
  return socket;
}

// Forwards connections to one rank, and keeps what their initiators sent.
class Proxy {
 public:
  explicit Proxy(std::string target) : target_(std::move(target)) {
    listener_ = *tcp::Listen("127.0.0.1", "", 0);
    thread_ = std::thread([this] { Accept(); });
  }
  ~Proxy() {
    stop_ = true;
    thread_.join();
    for (std::thread& thread : carriers_) thread.join();
  }
  std::string address() const { return tcp::AddressesOf(listener_.get())->front(); }
  std::vector<std::string> recorded() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return recorded_;
  }

 private:
  void Accept() {
    while (!stop_) {
      pollfd wait = {listener_.get(), POLLIN, 0};
      if (poll(&wait, 1, 20) != 1) continue;
      int error = 0;
      FileDescriptor socket = tcp::AcceptFrom(listener_.get(), &error);
      if (socket.valid()) carriers_.emplace_back([this, socket = std::move(socket)] { Carry(socket.get()); });
    }
  }
  void Carry(int initiator) {
    const FileDescriptor target = ConnectTo(target_);
    if (!target.valid()) return;
    size_t index = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      index = recorded_.size();
      recorded_.emplace_back();
    }
    std::array<char, 16384> buffer;
    const auto carry = [&](int from, int to, bool record) {
      const ssize_t bytes = recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (bytes == 0 || (bytes < 0 && errno != EAGAIN)) return false;
      if (bytes > 0 && record) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (recorded_[index].size() < 100'000) recorded_[index].append(buffer.data(), static_cast<size_t>(bytes));
      }
      for (ssize_t at = 0; at < bytes;) {
        const ssize_t sent = send(to, buffer.data() + at, static_cast<size_t>(bytes - at), MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return false;
        at += std::max<ssize_t>(sent, 0);
      }
      return true;
    };
    while (!stop_) {
      pollfd waits[2] = {{initiator, POLLIN, 0}, {target.get(), POLLIN, 0}};
      poll(waits, 2, 20);
      if (!carry(initiator, target.get(), true) || !carry(target.get(), initiator, false)) return;
    }
  }

  const std::string target_;
  FileDescriptor listener_;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<std::string> recorded_;
  std::vector<std::thread> carriers_;
  std::thread thread_;
};

// One stranger's visit.
class Attacker {
 public:
  explicit Attacker(uint64_t seed) : random_(seed) {}

  void Visit(const std::string& address, const std::vector<std::string>& recorded) {
    FileDescriptor socket = ConnectTo(address);
    if (!socket.valid()) return;
    switch (random_() % 6) {
      case 0:
        Send(socket.get(), Garbage(random_() % 5000));
        break;
      case 1: {
        const std::string hello = StrangersHello();
        Send(socket.get(), hello.substr(0, random_() % hello.size()));
        break;
      }
      case 2:
        Send(socket.get(), StrangersHello() + Garbage(200));
        break;
      case 3:
      case 4: {
        if (recorded.empty()) break;
        const std::string& all = recorded[random_() % recorded.size()];
        // All of it, the handshake alone, from the middle, or with a byte changed.
        std::string part = all.substr(0, random_() % 2 == 0 ? all.size() : sizeof(tcp::HandshakeFrame) * 2);
        if (random_() % 4 == 0) part = all.substr(std::min<size_t>(all.size(), sizeof(tcp::HandshakeFrame)));
        if (!part.empty() && random_() % 4 == 0) part[random_() % part.size()] ^= 1;
        Send(socket.get(), part);
        char answer[256];
        if (random_() % 2 == 0) (void)!recv(socket.get(), answer, sizeof answer, MSG_DONTWAIT);
        break;
      }
      default:
        break;  // says nothing
    }
    if (random_() % 3 == 0) {
      const linger reset = {1, 0};
      setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    if (random_() % 2 == 0) held_.push_back(std::move(socket));
    if (held_.size() > 100) held_.erase(held_.begin(), held_.begin() + 50);
  }

 private:
  static void Send(int socket, const std::string& bytes) {
    (void)!send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  std::string Garbage(size_t bytes) {
    std::string text(bytes, 0);
    for (char& byte : text) byte = static_cast<char>(random_());
    return text;
  }
  // The right form with another secret.
  std::string StrangersHello() {
    const tcp::HandshakeTerms terms = {std::string(32, 'x'),
                                       "net-test",
                                       2,
                                       static_cast<int>(random_() % kRanks),
                                       kRanks,
                                       tcp::ConfigurationOf(tcp::LimitsOf(kRanks))};
    const auto handshake = tcp::Handshake::Initiate(terms, static_cast<int>(random_() % kRanks));
    return std::string(reinterpret_cast<const char*>(&handshake->Hello()), sizeof(tcp::HandshakeFrame));
  }

  std::mt19937_64 random_;
  std::vector<FileDescriptor> held_;
};

// Exchanges numbers with the others until rank 0 has seen the word that the attack is over.
std::string Exchange(TransportRank& self) {
  const int rank = self.identity.rank;
  std::map<int, std::unique_ptr<Link>> links;
  for (int peer = 0; peer < kRanks; ++peer) {
    if (peer != rank) links[peer] = self.Connect(peer);
  }
  bool last = false;
  for (uint64_t round = 1; !last; ++round) {
    last = rank == 0 && self.store->Get("over", Deadline::Now()).ok();
    if (rank == 0 && round == 5) (void)self.store->Put("talking", "1");
    std::vector<uint64_t> out(1 + round % 3 * 1000, round * 10 + static_cast<uint64_t>(rank));
    out[0] = last ? 0 : round;
    for (auto& [peer, link] : links) {
      if (const absl::Status status = self.Send(*link, out.data(), out.size() * 8); !status.ok())
        return status.ToString();
    }
    for (auto& [peer, link] : links) {
      std::vector<uint64_t> in(out.size());
      if (const absl::Status status = self.Recv(*link, in.data(), in.size() * 8); !status.ok())
        return status.ToString();
      const bool ends = peer == 0 && in[0] == 0;
      last = last || ends;
      for (size_t i = 1; i < in.size(); ++i) {
        if (in[i] != round * 10 + static_cast<uint64_t>(peer)) return "wrong data in round " + std::to_string(round);
      }
      if (!ends && in[0] != round) return "the wrong round " + std::to_string(in[0]);
    }
  }
  const auto descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  return descriptors < 400 ? "" : "strangers left " + std::to_string(descriptors) + " descriptors";
}

std::string RunRank(TransportRank& self) {
  self.transport.reset();
  ProxiedStore store(self.store);
  self.identity.epoch = 2;
  auto transport = MakeTcpTransport(self.identity, &store);
  if (!transport.ok()) return transport.status().ToString();
  self.transport = *std::move(transport);
  const std::string problem = Exchange(self);
  self.transport.reset();
  return problem;
}

void Attack(SharedStore& store, uint64_t seed, int visits) {
  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<Proxy>> proxies;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto text = store.Get(KeyOf(rank), Deadline::After(seconds(30)));
    ASSERT_TRUE(text.ok());
    addresses.push_back(tcp::ParsePublished(*text)->addresses.front());
  }
  Attacker attacker(seed);
  // Strangers come first of all.
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int i = 0; i < 10; ++i) attacker.Visit(addresses[static_cast<size_t>(rank)], {});
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    proxies.push_back(std::make_unique<Proxy>(addresses[static_cast<size_t>(rank)]));
    ASSERT_TRUE(store.Put(ProxyKeyOf(rank), proxies.back()->address()).ok());
  }
  ASSERT_TRUE(store.Get("talking", Deadline::After(seconds(30))).ok());
  for (int i = 0; i < visits; ++i) {
    std::vector<std::string> recorded;
    for (const auto& proxy : proxies) {
      for (const std::string& text : proxy->recorded()) recorded.push_back(text);
    }
    attacker.Visit(addresses[static_cast<size_t>(i) % addresses.size()], recorded);
  }
  size_t connections = 0;
  for (const auto& proxy : proxies) connections += proxy->recorded().size();
  EXPECT_GE(connections, 3u) << "the ranks did not talk through the proxies";
  ASSERT_TRUE(store.Put("over", "1").ok());
  // The proxies carry until the ranks have ended.
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(store.Get("ended/" + std::to_string(rank), Deadline::After(seconds(30))).ok());
  }
}

TEST(TcpStrangers, StrangersNeitherEndNorDisturbARank) {
  SetTransport([](const runtime::Identity& identity, runtime::KeyValueStore* store) {
    return MakeTcpTransport(identity, store);
  });
  const int starts = testing::Nightly() ? 1000 : 10;
  const uint64_t seed = std::random_device()();
  for (int start = 0; start < starts && !HasFailure(); ++start) {
    RunOptions options;
    options.in_parent = [&](const std::vector<pid_t>&, SharedStore& store) {
      Attack(store, seed + static_cast<uint64_t>(start), 150);
    };
    const std::vector<int> codes = RunRanks(
        kRanks,
        [](TransportRank& self) {
          const std::string problem = RunRank(self);
          (void)self.store->Put("ended/" + std::to_string(self.identity.rank), "1");
          return problem;
        },
        options);
    EXPECT_EQ(codes, std::vector<int>(kRanks, 0)) << "start " << start << ", seed " << seed;
  }
}

}  // namespace
}  // namespace cohort::comm
