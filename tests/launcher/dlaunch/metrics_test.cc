// `dlaunch --metrics`: a real job scraped as Prometheus does it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "cohort/runtime/base/file_descriptor.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

runtime::FileDescriptor Connect(int port) {
  runtime::FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fd.Close();
  return fd;
}

// Returns the server's answer until it closes the connection; empty if nobody answers for 20 s.
string Ask(int port, const string& request) {
  const runtime::FileDescriptor fd = Connect(port);
  if (!fd.valid() || ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  string answer;
  char buffer[4096];
  for (pollfd ready{fd.get(), POLLIN, 0}; ::poll(&ready, 1, 20'000) > 0;) {
    const ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n <= 0) break;
    answer.append(buffer, static_cast<size_t>(n));
  }
  return answer;
}

string Scrape(int port) { return Ask(port, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); }

// The value of a series as it is printed; empty where there is none.
string ValueOf(const string& text, const string& series) {
  const size_t at = text.find("\n" + series + " ");
  if (at == string::npos) return "";
  const size_t begin = at + series.size() + 2;
  return text.substr(begin, text.find('\n', begin) - begin);
}

class Metrics : public ::testing::Test {
 protected:
  void SetUp() override {
    DlaunchProcess probe({"--metrics", "0", "true"});
    if (probe.Wait() == 125 && probe.err().find("without prometheus-cpp") != string::npos) {
      GTEST_SKIP() << "this build has no prometheus-cpp";
    }
  }
  // The port of a job that serves metrics; 0 where it says none.
  static int PortOf(DlaunchProcess* job) {
    const string line = "dlaunch: metrics at http://127.0.0.1:";
    const auto printed = [&] {
      const size_t at = job->err().find(line);
      return at != string::npos && job->err().find('\n', at) != string::npos;
    };
    if (!job->WaitUntil(printed)) return 0;
    return std::atoi(job->err().c_str() + job->err().find(line) + line.size());
  }
};

TEST_F(Metrics, MetricsDescribeJobNodesAndRanks) {
  DlaunchProcess job({"--metrics", "0", "--simulate-nodes", "2", "--nproc-per-node", "2", "sh", "-c",
                      "echo up; if [ $RANK = 1 ]; then while :; do :; done; fi; sleep 1000"});
  const int port = PortOf(&job);
  ASSERT_GT(port, 0) << job.err();
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.WaitForOutput("[" + std::to_string(rank) + "] up"));
  string text;
  ASSERT_TRUE(job.WaitUntil([&] {  // a busy rank uses CPU time, and both agents have told of their ranks
    text = Scrape(port);
    const string used = ValueOf(text, "cohort_rank_cpu_seconds_total{rank=\"1\",node=\"node0\"}");
    const string other = ValueOf(text, "cohort_rank_up{rank=\"3\",node=\"node1\"}");
    return !used.empty() && std::stod(used) > 0.1 && !other.empty();
  })) << text;
  EXPECT_THAT(text, HasSubstr("HTTP/1.1 200 OK"));
  EXPECT_THAT(text, HasSubstr("# TYPE cohort_rank_cpu_seconds_total counter\n"));
  EXPECT_THAT(text, HasSubstr("source=\"2 simulated nodes on this machine\""));
  EXPECT_EQ(ValueOf(text, "cohort_job_ranks"), "4");
  EXPECT_EQ(ValueOf(text, "cohort_job_nodes"), "2");
  EXPECT_EQ(ValueOf(text, "cohort_job_restarts_total"), "0");
  EXPECT_EQ(ValueOf(text, "cohort_job_ending"), "0");
  EXPECT_EQ(ValueOf(text, "cohort_node_up{node=\"node1\"}"), "1");
  for (int rank = 0; rank < 4; ++rank) {
    const string labels = "{rank=\"" + std::to_string(rank) + "\",node=\"node" + std::to_string(rank / 2) + "\"}";
    EXPECT_EQ(ValueOf(text, "cohort_rank_up" + labels), "1") << text;
    EXPECT_EQ(ValueOf(text, "cohort_rank_stopped" + labels), "0");
    EXPECT_EQ(ValueOf(text, "cohort_rank_in_call" + labels), "0");
    EXPECT_GT(std::stod(ValueOf(text, "cohort_rank_resident_memory_bytes" + labels)), 100'000);
  }
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
  EXPECT_EQ(job.WaitUntilGone(seconds(20)), "");
}

// A rank computes and the three others wait for it in a barrier: top names it, and its seconds are counted.
TEST_F(Metrics, MetricsNameTheRankThatOthersWaitFor) {
  DlaunchProcess job(
      {"--metrics", "0", "--simulate-nodes", "1", "--nproc-per-node", "4", "--", COHORT_DEADLOCK_RANKS, "straggler"});
  const int port = PortOf(&job);
  ASSERT_GT(port, 0) << job.err();
  const auto of = [](int rank) { return "{rank=\"" + std::to_string(rank) + "\",node=\"node0\"}"; };
  string text;
  ASSERT_TRUE(job.WaitUntil([&] {
    text = Scrape(port);
    const string waited = ValueOf(text, "cohort_rank_waited_for_seconds_total" + of(2));
    return !waited.empty() && std::stod(waited) >= 1 && ValueOf(text, "cohort_rank_waiting_ranks" + of(2)) == "3";
  })) << text;
  EXPECT_THAT(text, HasSubstr("# TYPE cohort_rank_waited_for_seconds_total counter\n"));
  for (const int rank : {0, 1, 3}) EXPECT_EQ(ValueOf(text, "cohort_rank_waiting_ranks" + of(rank)), "0");
  const size_t at = job.err().find(", as job-");
  ASSERT_NE(at, string::npos) << job.err();
  string page;
  EXPECT_TRUE(job.WaitUntil([&] {  // an agent that is late is left out of a page
    DlaunchProcess top({"top", job.err().substr(at + 5, job.err().find('\n', at) - at - 5)});
    EXPECT_EQ(top.Wait(), 0) << top.err();
    page = top.out();
    return page.find("3 ranks wait for rank 2, after barrier #") != string::npos;
  })) << page;
  EXPECT_THAT(page, Not(HasSubstr("longest in its call")));
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
}

// That it need not wait for the server's threads either: tests/launcher/metrics.
TEST_F(Metrics, MetricsLeaveTheJobItsExitStatus) {
  DlaunchProcess job({"--metrics", "0", "sh", "-c", "exit 3"});
  EXPECT_EQ(job.Wait(), 3) << job.err();
}

TEST_F(Metrics, StrangersDoNotDisturbMetrics) {
  DlaunchProcess job({"--metrics", "0", "sh", "-c", "echo up; sleep 1000"});
  const int port = PortOf(&job);
  ASSERT_TRUE(job.WaitForOutput("up"));
  std::vector<runtime::FileDescriptor> silent;
  for (int i = 0; i < 2; ++i) silent.push_back(Connect(port));  // as many as it has threads
  EXPECT_THAT(Ask(port, "GET /other HTTP/1.1\r\nConnection: close\r\n\r\n"), Not(HasSubstr("cohort_")));
  EXPECT_THAT(Ask(port, "POST /metrics HTTP/9\r\n\r\n"), Not(HasSubstr("cohort_rank_up")));
  Ask(port, string(100'000, 'x'));
  silent.clear();
  string text;
  EXPECT_TRUE(job.WaitUntil([&] { return !ValueOf(text = Scrape(port), "cohort_job_ranks").empty(); })) << text;
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
}

TEST_F(Metrics, APortInUseIsRefusedByName) {
  DlaunchProcess first({"--metrics", "0", "sh", "-c", "echo up; sleep 1000"});
  const int port = PortOf(&first);
  ASSERT_TRUE(first.WaitForOutput("up"));
  DlaunchProcess second({"--metrics", std::to_string(port), "sh", "-c", "echo never"});
  EXPECT_EQ(second.Wait(), 125);
  EXPECT_THAT(second.err(), HasSubstr("--metrics 127.0.0.1:" + std::to_string(port) + ": can't listen there"));
  EXPECT_EQ(second.err().find("Civet"), string::npos) << second.err();  // its server's library
  EXPECT_EQ(second.out(), "");
  EXPECT_EQ(second.WaitUntilGone(seconds(20)), "");
}

}  // namespace
}  // namespace cohort::launcher
