#include "tests/support/linked_namespaces.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

namespace cohort::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<const char*, 3> kKinds = {"net", "ipc", "mnt"};
constexpr int kMtu = 9000;
// The most packets that wait in one direction; more are dropped, as by a switch.
constexpr size_t kMostQueued = 4000;

absl::Status Problem(const std::string& doing) {
  return absl::FailedPreconditionError(doing + ": " + std::strerror(errno));
}

void SetAddress(ifreq* request, const std::string& text) {
  auto* address = reinterpret_cast<sockaddr_in*>(&request->ifr_addr);
  address->sin_family = AF_INET;
  inet_pton(AF_INET, text.c_str(), &address->sin_addr);
}

// A TUN device in this network namespace, up, with an address in a /24; its descriptor.
absl::StatusOr<int> MakeDevice(const char* name, const std::string& address) {
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0) return Problem("opening /dev/net/tun");
  ifreq request = {};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(device, TUNSETIFF, &request) != 0) return Problem("making a TUN device");
  const int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  SetAddress(&request, address);
  bool made = ioctl(control, SIOCSIFADDR, &request) == 0;
  SetAddress(&request, "255.255.255.0");
  made = made && ioctl(control, SIOCSIFNETMASK, &request) == 0;
  request.ifr_mtu = kMtu;
  made = made && ioctl(control, SIOCSIFMTU, &request) == 0;
  made = made && ioctl(control, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags |= IFF_UP | IFF_RUNNING;
  made = made && ioctl(control, SIOCSIFFLAGS, &request) == 0;
  const absl::Status status = made ? absl::OkStatus() : Problem("setting up a TUN device");
  close(control);
  if (!status.ok()) return status;
  return device;
}

// A machine reaches its own addresses over its loopback device.
absl::Status BringUpLoopback() {
  ifreq request = {};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool up = ioctl(control, SIOCSIFFLAGS, &request) == 0;
  const absl::Status status = up ? absl::OkStatus() : Problem("setting up the loopback device");
  close(control);
  return status;
}

// In the helper process: becomes the node's namespaces and makes its devices.
absl::StatusOr<std::array<int, 2>> MakeNamespace(int node) {
  if (unshare(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS) != 0) return Problem("making namespaces (needs root)");
  // UCX finds devices through /sys, which shows those of the namespace that mounted it.
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return Problem("making mounts private");
  if (mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) return Problem("mounting /sys");
  if (const absl::Status up = BringUpLoopback(); !up.ok()) return up;
  std::array<int, 2> devices;
  const auto wire = MakeDevice("wire0", LinkedNamespaces::AddressOf(node));
  if (!wire.ok()) return wire.status();
  const auto decoy = MakeDevice("decoy0", "10.99.0." + std::to_string(node + 1));
  if (!decoy.ok()) return decoy.status();
  devices[0] = *wire;
  devices[1] = *decoy;
  return devices;
}

// Two descriptors, or a text that says what went wrong.
void SendDescriptors(int socket, const absl::StatusOr<std::array<int, 2>>& devices) {
  std::string text = devices.ok() ? "ok" : std::string(devices.status().message());
  iovec part = {text.data(), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  if (devices.ok()) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(2 * sizeof(int));
    std::memcpy(CMSG_DATA(header), devices->data(), 2 * sizeof(int));
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);
}

absl::StatusOr<std::array<int, 2>> ReceiveDescriptors(int socket) {
  char text[512] = {};
  iovec part = {text, sizeof text - 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return Problem("the namespace's process did not answer");
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr) return absl::FailedPreconditionError(text);
  std::array<int, 2> devices;
  std::memcpy(devices.data(), CMSG_DATA(header), 2 * sizeof(int));
  return devices;
}

// One direction of the link.
struct Direction {
  struct Packet {
    Clock::time_point leaves;
    std::vector<char> bytes;
  };
  int from = -1;
  int to = -1;
  std::deque<Packet> queue;
  Clock::time_point free_at;  // when the line has sent what is queued
  std::mt19937 random{4711};

  void Take(const LinkSettings& settings) {
    char buffer[kMtu + 100];
    for (int i = 0; i < 64; ++i) {
      const ssize_t bytes = read(from, buffer, sizeof buffer);
      if (bytes <= 0) return;
      const bool lost = random() % 1'000'000 < settings.lost_per_million.load();
      if (lost || settings.cut.load() || queue.size() >= kMostQueued) continue;
      free_at = std::max(free_at, Clock::now());
      const uint64_t rate = settings.bits_per_second.load();
      if (rate > 0) free_at += std::chrono::nanoseconds(static_cast<uint64_t>(bytes) * 8'000'000'000 / rate);
      queue.push_back({free_at + std::chrono::microseconds(settings.delay_us.load()), {buffer, buffer + bytes}});
    }
  }
  void Give(LinkSettings& settings) {
    const Clock::time_point now = Clock::now();
    for (; !queue.empty() && queue.front().leaves <= now; queue.pop_front()) {
      const std::vector<char>& bytes = queue.front().bytes;
      if (settings.cut.load() || write(to, bytes.data(), bytes.size()) < 0) continue;
      settings.bytes_carried.fetch_add(bytes.size());
    }
  }
};

[[noreturn]] void Forward(int wire0, int wire1, LinkSettings& settings) {
  std::array<Direction, 2> directions;
  directions[0].from = directions[1].to = wire0;
  directions[1].from = directions[0].to = wire1;
  while (true) {
    auto wake = Clock::now() + std::chrono::milliseconds(100);
    for (const Direction& direction : directions) {
      if (!direction.queue.empty()) wake = std::min(wake, direction.queue.front().leaves);
    }
    const auto left = std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(wake - Clock::now()));
    const timespec time = {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    pollfd waits[2] = {{wire0, POLLIN, 0}, {wire1, POLLIN, 0}};
    ppoll(waits, 2, &time, nullptr);
    for (Direction& direction : directions) {
      direction.Take(settings);
      direction.Give(settings);
    }
  }
}

}  // namespace

absl::Status LinkedNamespaces::MakeNode(int index) {
  Node& node = nodes_[static_cast<size_t>(index)];
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return Problem("socketpair");
  const pid_t helper = fork();
  if (helper == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    SendDescriptors(ends[1], MakeNamespace(index));
    char ignored;
    (void)!read(ends[1], &ignored, 1);  // until the parent holds the namespaces
    _exit(0);
  }
  close(ends[1]);
  const absl::StatusOr<std::array<int, 2>> devices = ReceiveDescriptors(ends[0]);
  absl::Status status = devices.status();
  if (devices.ok()) {
    node.wire = (*devices)[0];
    node.decoy = (*devices)[1];
    for (size_t i = 0; i < kKinds.size() && status.ok(); ++i) {
      const std::string path = "/proc/" + std::to_string(helper) + "/ns/" + kKinds[i];
      node.namespaces[i] = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (node.namespaces[i] < 0) status = Problem("opening " + path);
    }
  }
  close(ends[0]);
  waitpid(helper, nullptr, 0);
  return status;
}

absl::StatusOr<std::unique_ptr<LinkedNamespaces>> LinkedNamespaces::Create() {
  std::unique_ptr<LinkedNamespaces> made(new LinkedNamespaces());
  void* memory = mmap(nullptr, sizeof(LinkSettings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Problem("mmap");
  made->settings_ = new (memory) LinkSettings;
  for (const int node : {0, 1}) {
    if (const absl::Status status = made->MakeNode(node); !status.ok()) return status;
  }
  const pid_t parent = getpid();
  made->forwarder_ = fork();
  if (made->forwarder_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    Forward(made->nodes_[0].wire, made->nodes_[1].wire, *made->settings_);
  }
  return made;
}

LinkedNamespaces::~LinkedNamespaces() {
  if (forwarder_ > 0) {
    kill(forwarder_, SIGKILL);
    waitpid(forwarder_, nullptr, 0);
  }
  for (const Node& node : nodes_) {
    for (const int descriptor : {node.wire, node.decoy, node.namespaces[0], node.namespaces[1], node.namespaces[2]}) {
      if (descriptor >= 0) close(descriptor);
    }
  }
  if (settings_ != nullptr) munmap(settings_, sizeof(LinkSettings));
}

absl::Status LinkedNamespaces::Enter(int node) const {
  // A mount namespace is refused to threads that share their working directory; a sanitizer has a thread of its own.
  if (unshare(CLONE_FS) != 0) return Problem("leaving the threads' common working directory");
  constexpr std::array<int, 3> kFlags = {CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWNS};
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (setns(nodes_[static_cast<size_t>(node)].namespaces[i], kFlags[i]) != 0) {
      return Problem(std::string("entering the namespace of ") + kKinds[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace cohort::testing
