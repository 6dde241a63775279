// The calling thread's name among others, and the threads that the runtime starts.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace cohort::runtime {

// Names the calling thread: an address that no other living thread of the process has. One instruction, where a
// thread-local variable of a shared library takes a call.
inline const void* ThisThread() {
#if defined(__x86_64__) || defined(__aarch64__)
  return __builtin_thread_pointer();
#else
  static thread_local char mark;
  return &mark;
#endif
}

// Starts a thread that is named and gets no signals, which belong to the program's own threads. `name` has at most 15
// characters. Throws std::system_error where the system has no more threads.
template <typename Function>
std::thread StartThread(const char* name, Function function) {
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  std::thread thread;
  {
    const Blocked blocked;
    thread = std::thread(std::move(function));
  }
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace cohort::runtime
