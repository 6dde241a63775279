#include "tests/launcher/dlaunch/cluster_dns.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <future>
#include <utility>

namespace cohort::launcher {
namespace {

using std::string;
using testing::LinkedNamespaces;

constexpr int kServerNode = 0;
constexpr uint16_t kPort = 53;
// The parts of a message (RFC 1035).
constexpr size_t kHeader = 12;
constexpr char kTypeA[] = {0, 1};
constexpr char kResponse[] = {'\x84', 0};  // authoritative, no error
constexpr char kNoSuchName = 3;
constexpr char kPointerToQuestion[] = {'\xc0', 12};

absl::Status Problem(const string& doing) { return absl::FailedPreconditionError(doing + ": " + std::strerror(errno)); }

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterDns>> ClusterDns::Start(const LinkedNamespaces& namespaces) {
  std::unique_ptr<ClusterDns> dns(new ClusterDns());
  std::promise<absl::Status> listens;
  dns->thread_ = std::thread([&, server = dns.get()] {
    absl::Status status = namespaces.Enter(kServerNode);
    if (status.ok()) status = server->Listen();
    const bool serves = status.ok();
    listens.set_value(std::move(status));  // the last use of what is the caller's
    if (serves) server->Serve();
  });
  const absl::Status status = listens.get_future().get();
  if (!status.ok()) return status;
  return dns;
}

ClusterDns::~ClusterDns() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
}

void ClusterDns::Add(const string& name, const string& address) {
  const runtime::MutexLock lock(mutex_);
  addresses_[name] = address;
}

absl::Status ClusterDns::Listen() {
  socket_ = runtime::FileDescriptor(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval look_up{.tv_sec = 0, .tv_usec = 50'000};  // whether the test is over
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &look_up, sizeof look_up);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(kPort);
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
    return Problem("listening for DNS");
  return absl::OkStatus();
}

void ClusterDns::Serve() {
  while (!ending_) {
    char buffer[512];
    sockaddr_in from{};
    socklen_t size = sizeof from;
    const ssize_t n = ::recvfrom(socket_.get(), buffer, sizeof buffer, 0, reinterpret_cast<sockaddr*>(&from), &size);
    if (n <= 0) continue;
    const string answer = Answer(string(buffer, static_cast<size_t>(n)));
    ::sendto(socket_.get(), answer.data(), answer.size(), 0, reinterpret_cast<const sockaddr*>(&from), size);
  }
}

string ClusterDns::Answer(const string& query) {
  string name;
  size_t at = kHeader;
  while (at < query.size() && query[at] != 0) {
    const size_t length = static_cast<unsigned char>(query[at]);
    name += (name.empty() ? "" : ".") + query.substr(at + 1, length);
    at += 1 + length;
  }
  if (at + 5 > query.size()) return "";
  const string question = query.substr(kHeader, at + 5 - kHeader);
  const bool wants_ipv4 = query.compare(at + 1, 2, kTypeA, 2) == 0;
  string address;
  {
    const runtime::MutexLock lock(mutex_);
    if (const auto found = addresses_.find(name); found != addresses_.end()) address = found->second;
  }
  string header = query.substr(0, 2) + string(kResponse, 2) + string("\0\1\0\0\0\0\0\0", 8);
  if (address.empty()) header[3] = kNoSuchName;
  if (address.empty() || !wants_ipv4) return header + question;
  header[7] = 1;  // one answer
  in_addr number{};
  ::inet_pton(AF_INET, address.c_str(), &number);
  return header + question + string(kPointerToQuestion, 2) + string("\0\1\0\1\0\0\0\0\0\4", 10) +
         string(reinterpret_cast<const char*>(&number), sizeof number);
}

PodSurroundings::PodSurroundings(const LinkedNamespaces* namespaces, int node, string full_name)
    : namespaces_(namespaces), node_(node), full_name_(std::move(full_name)) {
  host_ = full_name_.substr(0, full_name_.find('.'));
  const string files[][2] = {
      {"hosts", "127.0.0.1\tlocalhost\n" + LinkedNamespaces::AddressOf(node) + "\t" + full_name_ + "\t" + host_ + "\n"},
      {"resolv.conf", "nameserver " + LinkedNamespaces::AddressOf(kServerNode) +
                          "\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"},
      // This machine's own may ask a service that is outside of the pod.
      {"nsswitch.conf", "hosts: files dns\n"},
  };
  for (const auto& [name, text] : files) {
    std::ofstream(folder_.path() + "/" + name) << text;
    mounts_.emplace_back(folder_.path() + "/" + name, "/etc/" + name);
  }
}

// Allocates nothing: it is called between fork and exec, and the test has threads.
bool PodSurroundings::Enter() const {
  if (!namespaces_->Enter(node_).ok() || ::unshare(CLONE_NEWNS | CLONE_NEWUTS) != 0) return false;
  if (::sethostname(host_.data(), host_.size()) != 0) return false;
  for (const auto& [file, path] : mounts_) {
    if (::mount(file.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0) return false;
  }
  return true;
}

}  // namespace cohort::launcher
