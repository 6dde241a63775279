// The symbols that objects and archives made on Debian 12 take from a glibc newer than 2.28, and those of libudev, which has
// no archive. link.py puts them into each program and module of the wheel, seen by nobody else.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#ifndef HIDDEN // a test looks from outside, as if this glibc had nothing
#define HIDDEN __attribute__((visibility("hidden")))
#define LOOK_UP(name) dlsym(RTLD_DEFAULT, name)
#endif

// glibc 2.32: whether the process has no second thread. 0 costs libstdc++ an atomic operation where a plain one would do.
HIDDEN char __libc_single_threaded = 0;

// A function of this process's glibc, or NULL: it is too old to have it. `found` remembers that.
static void* OfThisGlibc(const char* name, _Atomic(void*)* found) {
  static char none;
  void* function = atomic_load_explicit(found, memory_order_acquire);
  if (function == NULL) {
    function = LOOK_UP(name);
    if (function == NULL) function = &none;
    atomic_store_explicit(found, function, memory_order_release);
  }
  return function == &none ? NULL : function;
}

static int FindTables(struct dl_phdr_info* object, size_t size, void* data) {
  struct dl_find_object* const result = data;
  const ElfW(Phdr)* tables = NULL;
  int inside = 0;
  (void)size;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const header = &object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_GNU_EH_FRAME) tables = header;
    if (header->p_type != PT_LOAD) continue;
    inside |= (uintptr_t)result->dlfo_map_start - begin < header->p_memsz;
  }
  if (!inside || tables == NULL) return 0;
  result->dlfo_eh_frame = (void*)(object->dlpi_addr + tables->p_vaddr);
  return 1;
}

// glibc 2.35: where the unwind tables of an address lie, for libgcc. GCC 12's asks nobody else.
HIDDEN int _dl_find_object(void* address, struct dl_find_object* result) {
  static _Atomic(void*) found;
  int (*const own)(void*, struct dl_find_object*) =
      (int (*)(void*, struct dl_find_object*))OfThisGlibc("_dl_find_object", &found);
  if (own != NULL) return own(address, result);
  result->dlfo_map_start = address; // nothing but dlfo_eh_frame is read
  return dl_iterate_phdr(FindTables, result) == 1 ? 0 : -1;
}

// glibc 2.36.
HIDDEN void arc4random_buf(void* buffer, size_t bytes) {
  unsigned char* next = buffer;
  while (bytes > 0) {
    const ssize_t got = getrandom(next, bytes, 0);
    if (got < 0 && errno != EINTR) abort();
    if (got <= 0) continue;
    next += got;
    bytes -= (size_t)got;
  }
}

HIDDEN uint32_t arc4random(void) {
  uint32_t value;
  arc4random_buf(&value, sizeof value);
  return value;
}

// glibc 2.32: "KILL" for SIGKILL.
HIDDEN const char* sigabbrev_np(int signal) {
  static const char* const names[] = {
      [SIGHUP] = "HUP",   [SIGINT] = "INT",     [SIGQUIT] = "QUIT", [SIGILL] = "ILL",   [SIGTRAP] = "TRAP",
      [SIGABRT] = "ABRT", [SIGBUS] = "BUS",     [SIGFPE] = "FPE",   [SIGKILL] = "KILL", [SIGUSR1] = "USR1",
      [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",   [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM", [SIGTERM] = "TERM",
      [SIGSTKFLT] = "STKFLT", [SIGCHLD] = "CHLD", [SIGCONT] = "CONT", [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP",
      [SIGTTIN] = "TTIN", [SIGTTOU] = "TTOU",   [SIGURG] = "URG",   [SIGXCPU] = "XCPU", [SIGXFSZ] = "XFSZ",
      [SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF", [SIGWINCH] = "WINCH", [SIGPOLL] = "POLL", [SIGPWR] = "PWR",
      [SIGSYS] = "SYS",
  };
  return signal < 0 || (size_t)signal >= sizeof names / sizeof names[0] ? NULL : names[signal];
}

static int64_t NanosecondsUntil(clockid_t clock, const struct timespec* until) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)(until->tv_sec - now.tv_sec) * 1000000000 + (until->tv_nsec - now.tv_nsec);
}

// glibc 2.30: waits by any clock. Older ones wait by the wall clock, which may be set: so at most a second at a time, after
// which the caller looks again, as after any wake-up without a cause.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* until) {
  static _Atomic(void*) found;
  int (*const own)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*) =
      (int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*))OfThisGlibc("pthread_cond_clockwait", &found);
  if (own != NULL) return own(condition, mutex, clock, until);
  int64_t left = NanosecondsUntil(clock, until);
  if (left > 1000000000) left = 1000000000;
  if (left < 0) left = 0;
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_nsec += (long)left;
  end.tv_sec += end.tv_nsec / 1000000000;
  end.tv_nsec %= 1000000000;
  const int result = pthread_cond_timedwait(condition, mutex, &end);
  if (result != ETIMEDOUT) return result;
  return NanosecondsUntil(clock, until) > 0 ? 0 : ETIMEDOUT;
}

// hwloc asks udev for properties of disks. Without udev it goes on without them.
HIDDEN void* udev_new(void) { return NULL; }

HIDDEN void* udev_unref(void* udev) { return udev; }

HIDDEN void* udev_device_new_from_subsystem_sysname(void* udev, const char* subsystem, const char* name) {
  (void)udev;
  (void)subsystem;
  (void)name;
  return NULL;
}

HIDDEN void* udev_device_unref(void* device) { return device; }

HIDDEN const char* udev_device_get_property_value(void* device, const char* key) {
  (void)device;
  (void)key;
  return NULL;
}
