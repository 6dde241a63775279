// Ranks that make no call of Cohort and get stuck in functions with names: rank 0 in a lock that it holds already, the
// others in a sleep, with a thread that waits too.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace stuck {

// Each does something behind its call, so that it is a frame of its own.
[[gnu::noinline]] int LockTwice() {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  return pthread_mutex_lock(&mutex) + pthread_mutex_lock(&mutex);
}

[[gnu::noinline]] int SleepForHours() {
  const timespec hours{36000, 0};
  return nanosleep(&hours, nullptr) + 1;
}

[[gnu::noinline]] int LoadBatch(int rank) { return (rank == 0 ? LockTwice() : SleepForHours()) + 1; }

[[gnu::noinline]] int PrefetchForHours() { return SleepForHours() + 1; }

}  // namespace stuck

int main() {
  const char* const rank = std::getenv("RANK");
  std::thread prefetcher([] { stuck::PrefetchForHours(); });
  std::printf("ready: %s, pid %d\n", rank, static_cast<int>(getpid()));
  std::fflush(stdout);
  const int loaded = stuck::LoadBatch(rank == nullptr ? 0 : std::atoi(rank));
  prefetcher.join();
  return loaded;
}
