#include "tests/support/in_processes.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

namespace cohort::testing {
namespace {

// The memory that workers share. Each takes the next number, so that all end at the same time.
struct Share {
  std::atomic<uint64_t> next;
  std::atomic<bool> failed;
  char text[4096];
};

void Work(Share& share, uint64_t last, const std::function<std::string(uint64_t)>& work) {
  while (!share.failed.load()) {
    const uint64_t i = share.next.fetch_add(1);
    if (i > last) return;
    const std::string wrong = work(i);
    if (wrong.empty() || share.failed.exchange(true)) continue;
    std::snprintf(share.text, sizeof share.text, "%llu: %s", static_cast<unsigned long long>(i), wrong.c_str());
  }
}

std::vector<int> OwnCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  sched_getaffinity(0, sizeof set, &set);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

std::string ForEachInProcesses(uint64_t first, uint64_t last, const std::function<std::string(uint64_t)>& work) {
  void* memory = mmap(nullptr, sizeof(Share), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return "no memory";
  Share& share = *new (memory) Share{};
  share.next = first;
  std::fflush(nullptr);
  std::vector<pid_t> workers;
  for (const int cpu : OwnCpus()) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpu, &set);
      sched_setaffinity(0, sizeof set, &set);
      Work(share, last, work);
      std::fflush(nullptr);
      _exit(0);
    }
    workers.push_back(pid);
  }
  std::string result;
  for (const pid_t pid : workers) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (status == 0) continue;
    share.failed = true;
    result = "a worker ended with wait status " + std::to_string(status) + "; what it printed tells more";
  }
  if (share.text[0] != '\0') result = share.text;
  munmap(memory, sizeof(Share));
  return result;
}

}  // namespace cohort::testing
