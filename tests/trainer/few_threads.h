// A process that gets a few more threads and no others, for what must not end it half way.
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace cohort::trainer {

// While it lives, threads have stacks of 1 GiB of addresses, and there is room for three of them.
class FewThreads {
 public:
  static constexpr int kTooMany = 8;
  FewThreads() {
    pthread_getattr_default_np(&attributes_);
    pthread_attr_t large = attributes_;
    pthread_attr_setstacksize(&large, kStack);
    pthread_setattr_default_np(&large);
    getrlimit(RLIMIT_AS, &limit_);
    rlimit less = limit_;
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    less.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + 3 * kStack + kStack / 2;
    setrlimit(RLIMIT_AS, &less);
  }
  ~FewThreads() {
    setrlimit(RLIMIT_AS, &limit_);
    pthread_setattr_default_np(&attributes_);
    pthread_attr_destroy(&attributes_);
  }
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;

 private:
  static constexpr uint64_t kStack = uint64_t{1} << 30;
  pthread_attr_t attributes_;
  rlimit limit_;
};

}  // namespace cohort::trainer
