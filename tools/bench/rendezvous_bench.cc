// how long a rendezvous of thousands of ranks takes on this machine: time, CPU and memory of the server beside the
// targets. Every agent is a real client with a certificate and a TLS connection of its own, as tools/dev runs them: all
// in one process, the server in another. Ranks are only told of. A second epoch follows after one rank has failed.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/rpc/client.h"
#include "cohort/launcher/rpc/server.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"
#include "tools/program/program.h"

namespace cohort::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using runtime::Deadline;
using std::chrono::seconds;

constexpr double kTargetSeconds = 3.5;       // to join
constexpr double kTargetMemoryMiB = 250;     // of the server
constexpr double kTargetAgainSeconds = 0.3;  // from the end of one epoch to the next
constexpr seconds kPatience{120};

int Fail(const std::string& what) {
  std::fprintf(stderr, "rendezvous_bench: %s\n", what.c_str());
  return 1;
}

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

v1::JobPlan MakePlan(uint32_t nodes, uint32_t ranks_per_node) {
  v1::JobPlan plan;
  plan.mutable_job()->set_job_id(NewJobId());
  plan.mutable_job()->add_programs()->add_command("true");
  plan.mutable_job()->set_on_failure("restart");
  plan.mutable_job()->set_max_restarts(1);
  plan.mutable_job()->set_grace_ms(1000);
  plan.set_join_timeout_ms(static_cast<uint32_t>(std::chrono::milliseconds(kPatience).count()));
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

// The resources that the server's process has used so far.
struct Usage {
  double cpu_seconds = 0;
  double peak_mib = 0;
};

Usage OwnUsage() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds_of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return {seconds_of(used.ru_utime) + seconds_of(used.ru_stime), static_cast<double>(used.ru_maxrss) / 1024};
}

// The server's process: says its address, then its usage for each byte that it reads, until there is no more.
int Serve(int socket, const v1::JobPlan& plan, const TlsIdentity& identity) {
  RendezvousServer::Options options;
  options.identity = identity;
  const auto server = RendezvousServer::Start(plan, options, [](const v1::JobReport&) {});
  std::array<char, 64> address{};
  if (server.ok()) (*server)->address().copy(address.data(), address.size() - 1);
  (void)!::write(socket, address.data(), address.size());
  for (char asked; ::read(socket, &asked, 1) == 1;) {
    const Usage usage = OwnUsage();
    (void)!::write(socket, &usage, sizeof usage);
  }
  return server.ok() ? 0 : 1;
}

class Server {
 public:
  // Forks, so before there are threads.
  Server(const v1::JobPlan& plan, const TlsIdentity& identity) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::_exit(Serve(ends[1], plan, identity));
    }
    ::close(ends[1]);
    socket_ = ends[0];
  }
  ~Server() {
    ::close(socket_);
    ::waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Empty: it could not start.
  std::string address() const {
    std::array<char, 64> address{};
    if (::recv(socket_, address.data(), address.size(), MSG_WAITALL) != static_cast<ssize_t>(address.size())) return "";
    return address.data();
  }
  Usage usage() const {
    Usage usage;
    (void)!::write(socket_, "u", 1);
    (void)!::recv(socket_, &usage, sizeof usage, MSG_WAITALL);
    return usage;
  }

 private:
  int socket_ = -1;
  pid_t pid_ = -1;
};

// The agents of a job, whose ranks exist in words only.
class Agents {
 public:
  Agents(uint32_t nodes, uint32_t ranks_per_node) : ranks_per_node_(ranks_per_node), clients_(nodes) {}

  // All join, `at_once` at a time. The first error, or OK.
  absl::Status Join(const std::string& address, const std::vector<TlsIdentity>& identities, uint32_t at_once) {
    std::atomic<uint32_t> next{0};
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < at_once; ++i) {
      threads.emplace_back([&] {
        for (uint32_t node; (node = next++) < clients_.size();) JoinOne(node, address, identities[node]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const runtime::MutexLock lock(mutex_);
    return first_error_;
  }
  // Waits until every agent has had `count` assignments.
  bool WaitForAssignments(size_t count) {
    const Deadline deadline = Deadline::After(kPatience);
    const runtime::MutexLock lock(mutex_);
    while (assignments_ < count * clients_.size()) {
      if (!changed_.Wait(mutex_, deadline)) return false;
    }
    return true;
  }
  // Each agent says that its ranks run.
  void ReportStarted() {
    for (uint32_t node = 0; node < clients_.size(); ++node) {
      v1::FromAgent message;
      for (uint32_t i = 0; i < ranks_per_node_; ++i) {
        v1::RankPid& pid = *message.mutable_started()->add_pids();
        pid.set_rank(node * ranks_per_node_ + i);
        pid.set_pid(1000 + static_cast<int>(i));
      }
      (void)clients_[node]->Send(message);
    }
  }
  // A rank of the last node fails; the others end theirs when they are told to. Returns when the last has done so.
  bool FailOne() {
    const auto last = static_cast<uint32_t>(clients_.size()) - 1;
    v1::FromAgent message;
    *message.mutable_exit() = Exit(last * ranks_per_node_);
    message.mutable_exit()->set_exit_code(1);
    (void)clients_[last]->Send(message);
    const Deadline deadline = Deadline::After(kPatience);
    {
      const runtime::MutexLock lock(mutex_);
      while (stops_ < clients_.size()) {
        if (!changed_.Wait(mutex_, deadline)) return false;
      }
    }
    for (uint32_t node = 0; node < clients_.size(); ++node) End(node, node == last ? 1 : 0);
    return true;
  }

 private:
  static v1::RankExit Exit(uint32_t rank) {
    v1::RankExit exit;
    exit.set_rank(rank);
    exit.set_started(true);
    return exit;
  }
  void End(uint32_t node, uint32_t first) {
    for (uint32_t i = first; i < ranks_per_node_; ++i) {
      v1::FromAgent message;
      *message.mutable_exit() = Exit(node * ranks_per_node_ + i);
      message.mutable_exit()->set_signal(15);
      message.mutable_exit()->set_killed_by_us(true);
      (void)clients_[node]->Send(message);
    }
    v1::FromAgent done;
    done.mutable_done()->set_node(node);
    (void)clients_[node]->Send(done);
  }
  void JoinOne(uint32_t node, const std::string& address, const TlsIdentity& identity) {
    v1::NodeOffer offer;
    offer.set_protocol(kRendezvousProtocol);
    offer.set_node(node);
    offer.set_name("node" + std::to_string(node));
    auto client = RendezvousClient::Connect(
        address, identity, offer,
        {.on_message = [this](const v1::ToAgent& message) { OnMessage(message); }, .on_lost = [](const auto&) {}},
        Deadline::After(kPatience));
    if (client.ok()) {
      clients_[node] = *std::move(client);
      return;
    }
    const runtime::MutexLock lock(mutex_);
    if (first_error_.ok()) first_error_ = client.status();
  }
  void OnMessage(const v1::ToAgent& message) {
    const runtime::MutexLock lock(mutex_);
    if (message.has_assignment()) ++assignments_;
    if (message.has_stop()) ++stops_;
    changed_.NotifyAll();
  }

  const uint32_t ranks_per_node_;
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  size_t assignments_ = 0;
  size_t stops_ = 0;
  absl::Status first_error_;
  std::vector<std::unique_ptr<RendezvousClient>> clients_;  // last, since they call back
};

void Row(const char* what, double value, const char* unit, double target) {
  std::printf("%-44s %8.2f %-4s", what, value, unit);
  if (target > 0) std::printf("  target %6.2f  %s", target, value <= target ? "met" : "missed");
  std::printf("\n");
}

int Measure(uint32_t nodes, uint32_t ranks_per_node, uint32_t at_once) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const auto authority = JobAuthority::Create();
  if (!authority.ok()) return Fail(std::string(authority.status().message()));
  std::vector<TlsIdentity> identities;
  for (uint32_t node = 0; node < nodes; ++node) identities.push_back(*authority->IssueAgent(node));
  const Server server(MakePlan(nodes, ranks_per_node), *authority->IssueAgent(0, /*hosts_rendezvous=*/true));
  const std::string address = server.address();
  if (address.empty()) return Fail("the rendezvous can't listen");
  Agents agents(nodes, ranks_per_node);
  const auto start = Clock::now();
  const absl::Status joined = agents.Join(address, identities, at_once);
  if (!joined.ok()) return Fail(std::string(joined.message()));
  if (!agents.WaitForAssignments(1)) return Fail("not all agents were assigned in time");
  const double first = Since(start);
  const Usage after_first = server.usage();
  const Usage own = OwnUsage();
  std::printf("%u agents, %u ranks, %u handshakes at a time, %u CPUs\n", nodes, nodes * ranks_per_node, at_once,
              std::thread::hardware_concurrency());
  Row("from the first connection to all assignments", first, "s", kTargetSeconds);
  Row("CPU of the server", after_first.cpu_seconds, "s", 0);
  Row("CPU of the agents", own.cpu_seconds, "s", 0);
  Row("memory of the server, at most", after_first.peak_mib, "MiB", kTargetMemoryMiB);
  agents.ReportStarted();
  const auto failed = Clock::now();
  if (!agents.FailOne()) return Fail("not all agents were told to stop in time");
  const auto ended = Clock::now();
  if (!agents.WaitForAssignments(2)) return Fail("the second epoch did not begin in time");
  Row("a second epoch, from the end of the first", Since(ended), "s", kTargetAgainSeconds);
  Row("the same, from the failure of a rank", Since(failed), "s", 0);
  Row("memory of the server, at most", server.usage().peak_mib, "MiB", kTargetMemoryMiB);
  return 0;
}

}  // namespace
}  // namespace cohort::launcher

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("rendezvous_bench", [argc, argv] {
    CLI::App app("How long a rendezvous of thousands of ranks takes on this machine.");
    uint32_t nodes = 1250;
    uint32_t ranks_per_node = 8;
    uint32_t at_once = 32;
    app.add_option("--nodes", nodes, "agents")->check(CLI::Range(1, 4096))->capture_default_str();
    app.add_option("--ranks-per-node", ranks_per_node)->check(CLI::Range(1, 64))->capture_default_str();
    app.add_option("--at-once", at_once, "agents that connect at the same time")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    if (const auto done = cohort::tools::ParseCommandLine(app, argc, argv)) return *done;
    return cohort::launcher::Measure(nodes, ranks_per_node, at_once);
  });
}
