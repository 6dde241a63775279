#include "tests/support/transport_world.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "cohort/comm/transport/tcp/tcp_transport.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/comm/transport/ucx/ucx_transport.h"
#include "cohort/comm/transport/ucx/wire.h"

namespace cohort::comm {

using runtime::Deadline;

struct SharedStore::Memory {
  struct Entry {
    std::atomic<uint32_t> used;
    char key[64];
    uint32_t bytes;
    char value[4096];
  };
  std::atomic<uint32_t> next;
  Entry entries[64];
};

SharedStore::SharedStore() {
  void* memory = mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  memory_ = memory == MAP_FAILED ? nullptr : new (memory) Memory();
}
SharedStore::~SharedStore() { munmap(memory_, sizeof(Memory)); }

absl::Status SharedStore::Put(std::string_view key, std::string_view value) {
  const uint32_t index = memory_->next.fetch_add(1);
  if (index >= 64 || key.size() >= 64 || value.size() > 4096) return absl::ResourceExhaustedError("test store");
  Memory::Entry& entry = memory_->entries[index];
  std::memcpy(entry.key, key.data(), key.size());
  std::memcpy(entry.value, value.data(), value.size());
  entry.bytes = static_cast<uint32_t>(value.size());
  entry.used.store(1, std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<std::string> SharedStore::Get(std::string_view key, Deadline deadline) {
  while (true) {
    for (const Memory::Entry& entry : memory_->entries) {
      if (entry.used.load(std::memory_order_acquire) == 1 && key == entry.key) {
        return std::string(entry.value, entry.bytes);
      }
    }
    if (deadline.passed()) return absl::DeadlineExceededError(std::string(key) + " is not there");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

std::unique_ptr<Link> TransportRank::Connect(int peer, uint16_t lane, uint64_t group) {
  LinkSpec spec;
  spec.group = group;
  spec.epoch = 1;
  spec.peer_world_rank = peer;
  spec.lane = lane;
  absl::StatusOr<std::unique_ptr<Link>> link = transport->Connect(spec);
  if (!link.ok()) {
    std::fprintf(stderr, "Connect: %s\n", link.status().ToString().c_str());
    _exit(3);
  }
  return *std::move(link);
}

bool TransportRank::Drive(const std::function<bool()>& done, std::chrono::nanoseconds limit) {
  const Deadline deadline = Deadline::After(limit);
  int idle = 0;
  while (!done()) {
    if (deadline.passed()) return false;
    if (transport->Poll()) {
      idle = 0;
      continue;
    }
    if (++idle < 50) continue;
    bool ready = false;
    pollfd descriptor = {transport->Arm(&ready), POLLIN, 0};
    if (!ready) poll(&descriptor, 1, 50);
    idle = 0;
  }
  return true;
}

absl::Status TransportRank::Send(Link& link, const void* data, size_t bytes, uint64_t signature) {
  SendOperation operation;
  operation.data = static_cast<const std::byte*>(data);
  operation.bytes = bytes;
  operation.signature = signature;
  Progress progress = Progress::kBlocked;
  const bool in_time = Drive([&] {
    progress = link.TrySend(operation);
    return progress == Progress::kDone || progress == Progress::kFailed;
  });
  if (!in_time) return absl::DeadlineExceededError("send");
  return progress == Progress::kDone ? absl::OkStatus() : operation.error;
}

absl::Status TransportRank::Recv(Link& link, void* data, size_t bytes, uint64_t signature) {
  RecvOperation operation;
  operation.data = static_cast<std::byte*>(data);
  operation.bytes = bytes;
  operation.signature = signature;
  Progress progress = Progress::kBlocked;
  const bool in_time = Drive([&] {
    progress = link.TryRecv(operation);
    return progress == Progress::kDone || progress == Progress::kFailed;
  });
  if (!in_time) return absl::DeadlineExceededError("receive");
  return progress == Progress::kDone ? absl::OkStatus() : operation.error;
}

runtime::Identity TestIdentity(int rank, int size, const std::string& secret) {
  runtime::Identity identity;
  identity.job_id = "net-test";
  identity.rank = rank;
  identity.world_size = size;
  identity.node = rank;
  for (int node = 0; node < size; ++node) {
    runtime::NodeInfo info;
    info.index = node;
    info.name = "node" + std::to_string(node);
    info.first_rank = node;
    info.rank_count = 1;
    identity.nodes.push_back(info);
  }
  identity.job_secret = secret;
  identity.data_interface_ip = "127.0.0.1";
  identity.nodes_share_host = true;
  return identity;
}

namespace {

TransportMaker maker;

NetKind UcxKind(const std::string& name, const ucx::WireLimits& limits, const UcxOptions& options) {
  NetKind kind;
  kind.name = name;
  kind.make = [options](const runtime::Identity& identity, runtime::KeyValueStore* store) {
    return MakeUcxTransport(identity, store, options);
  };
  kind.piece_bytes = limits.piece_bytes;
  kind.window = limits.window;
  kind.announces = options.as_over_rdma;
  return kind;
}

NetKind TcpKind(const std::string& name, const TcpOptions& options) {
  NetKind kind;
  kind.name = name;
  kind.make = [options](const runtime::Identity& identity, runtime::KeyValueStore* store) {
    return MakeTcpTransport(identity, store, options);
  };
  kind.piece_bytes = tcp::kMostFrameBytes;
  kind.window = tcp::LimitsOf(2).window;
  return kind;
}

int RunBody(int rank, int size, SharedStore& store, const std::function<std::string(TransportRank&)>& body,
            const std::string& secret) {
  TransportRank self;
  self.identity = TestIdentity(rank, size, secret);
  self.store = &store;
  auto transport = self.Make(self.identity);
  if (!transport.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", rank, transport.status().ToString().c_str());
    return 2;
  }
  self.transport = *std::move(transport);
  const std::string problem = body(self);
  self.transport.reset();
  if (problem.empty()) return 0;
  std::fprintf(stderr, "rank %d: %s\n", rank, problem.c_str());
  return 1;
}

int WaitFor(pid_t pid, Deadline deadline) {
  int status = 0;
  while (true) {
    const pid_t done = waitpid(pid, &status, WNOHANG);
    if (done == pid) return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (deadline.passed()) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return 255;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

void SetTransport(const TransportMaker& make) { maker = make; }

std::vector<NetKind> NetKinds() {
  UcxOptions stream, small, rdma;
  small.set_variables = {"UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"};
  rdma.as_over_rdma = true;
  TcpOptions tcp, small_tcp, tls, small_tls;
  small_tcp.small_sockets = small_tls.small_sockets = true;
  tls.encrypt = small_tls.encrypt = true;
  TcpOptions rails = tcp, small_rails = small_tcp;
  rails.further_ips = {"127.0.0.2"};
  small_rails.further_ips = {"127.0.0.2", "127.0.0.3"};
  return {UcxKind("UcxStream", ucx::kStreamLimits, stream),
          UcxKind("UcxSmallSockets", ucx::kStreamLimits, small),
          UcxKind("UcxAsOverRdma", ucx::kRdmaLimits, rdma),
          TcpKind("Tcp", tcp),
          TcpKind("TcpSmallSockets", small_tcp),
          TcpKind("TcpTls", tls),
          TcpKind("TcpTlsSmallSockets", small_tls),
          TcpKind("TcpRails", rails),
          TcpKind("TcpSmallSocketsRails", small_rails)};
}

absl::StatusOr<std::unique_ptr<Transport>> TransportRank::Make(const runtime::Identity& own) const {
  return maker(own, store);
}

std::vector<int> RunRanks(int size, const std::function<std::string(TransportRank&)>& body,
                          std::chrono::seconds limit) {
  RunOptions options;
  options.limit = limit;
  return RunRanks(size, body, options);
}

std::vector<int> RunRanks(int size, const std::function<std::string(TransportRank&)>& body, const RunOptions& options) {
  SharedStore store;
  std::vector<pid_t> pids;
  std::fflush(nullptr);
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      const size_t index = static_cast<size_t>(rank);
      const std::string secret = index < options.secrets.size() ? options.secrets[index] : std::string(32, 's');
      // exit(), not _exit(): the leak sanitizer looks at exit.
      std::exit(RunBody(rank, size, store, body, secret));
    }
    pids.push_back(pid);
  }
  if (options.in_parent) options.in_parent(pids, store);
  const Deadline deadline = Deadline::After(options.limit);
  std::vector<int> codes;
  for (const pid_t pid : pids) codes.push_back(WaitFor(pid, deadline));
  return codes;
}

std::string WhyNot(const NetKind& kind) {
  SharedStore reason;
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    SharedStore store;
    const auto transport = kind.make(TestIdentity(0, 2), &store);
    if (!transport.ok()) (void)reason.Put("reason", transport.status().ToString());
    std::exit(0);
  }
  if (WaitFor(pid, Deadline::After(std::chrono::seconds(20))) != 0) return "the probe of it did not end in order";
  const absl::StatusOr<std::string> text = reason.Get("reason", Deadline::Now());
  return text.ok() ? *text : "";
}

}  // namespace cohort::comm
