/* The rank of `tools/dev bench inference`: all-reduce of activations by comm/c/examples/tensor_parallel.h, in the memory
 * that it gives and in other memory, beside the way that CPU inference engines write for themselves.
 *
 *   inference_rank [--check] [--no-peer]
 *
 * That way, in words of our own: each rank has two buffers in shared memory, used in turn, and a counter of calls. A rank
 * copies its tensor in and raises its counter. "one shot" waits for all counters, then sums all ranks' buffers into its
 * tensor. "two shots" sums its own slice only, raises the counter again, and copies the slices of the others. There is no
 * barrier at the end: a buffer is used again after two calls, when every reader must have left it. The engines wait by
 * spinning alone; ours yields after a while, because ranks that share a CPU would otherwise wait for the scheduler. */
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tensor_parallel.h"

enum { MOST_BYTES = 1 << 20, TURNS = 40, SPINS = 2000, MOST_CALLS = 1000, LEAST_CALLS = 20, TURN_US = 2000 };

struct peer_buffer {
  _Alignas(64) _Atomic uint64_t calls;
  _Alignas(64) char data[2][MOST_BYTES];
};

struct peer {
  struct peer_buffer* ranks;
  uint64_t calls;
  int rank, size;
};

static void fail(const char* what) {
  fprintf(stderr, "inference_rank: %s: %s\n", what, cohort_last_error());
  exit(1);
}

static float widened(uint16_t half) {
  union {
    uint32_t bits;
    float value;
  } one = {(uint32_t)half << 16};
  return one.value;
}

static uint16_t rounded(float value) {
  union {
    float value;
    uint32_t bits;
  } one = {value};
  return (uint16_t)((one.bits + 0x7fff + ((one.bits >> 16) & 1)) >> 16);
}

typedef float floats __attribute__((vector_size(64), aligned(4)));
typedef uint32_t words __attribute__((vector_size(64), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(32), aligned(2)));
enum { LANES = 16 };

/* Sums elements [first, first + n) of all ranks' buffers into `out`; n is a multiple of LANES. */
static void sum_buffers(const struct peer* peer, int half, int64_t first, int64_t n, int is_float, char* out) {
  for (int64_t i = 0; i < n; i += LANES) {
    floats sum = {0};
    for (int r = 0; r < peer->size; ++r) {
      const char* data = peer->ranks[r].data[half];
      if (is_float) {
        sum += *(const floats*)((const float*)data + first + i);
      } else {
        sum += (floats)(__builtin_convertvector(*(const halves*)((const uint16_t*)data + first + i), words) << 16);
      }
    }
    if (is_float) {
      *(floats*)((float*)out + i) = sum;
    } else {
      const words bits = (words)sum;
      *(halves*)((uint16_t*)out + i) = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, halves);
    }
  }
}

static void raise_and_await(struct peer* peer) {
  ++peer->calls;
  atomic_store_explicit(&peer->ranks[peer->rank].calls, peer->calls, memory_order_release);
  for (int r = 0; r < peer->size; ++r) {
    for (int spins = 0; atomic_load_explicit(&peer->ranks[r].calls, memory_order_acquire) < peer->calls; ++spins) {
      if (spins < SPINS) _mm_pause();
      if (spins >= SPINS) sched_yield();
    }
  }
}

static void one_shot(struct peer* peer, void* data, int64_t count, int is_float) {
  const int half = (int)(peer->calls / 2 % 2);
  memcpy(peer->ranks[peer->rank].data[half], data, (size_t)count * (is_float ? 4 : 2));
  raise_and_await(peer);
  sum_buffers(peer, half, 0, count, is_float, data);
  ++peer->calls; /* both ways raise the number by two a call, so that they can take turns */
}

static void two_shots(struct peer* peer, void* data, int64_t count, int is_float) {
  const int half = (int)(peer->calls / 2 % 2);
  const size_t width = is_float ? 4 : 2;
  char* own = peer->ranks[peer->rank].data[half];
  const int64_t slice = (count / peer->size + 31) / 32 * 32;
  memcpy(own, data, (size_t)count * width);
  raise_and_await(peer);
  for (int step = 0; step < 2; ++step) {
    for (int r = 0; r < peer->size; ++r) {
      const int64_t first = r * slice < count ? r * slice : count;
      const int64_t n = r == peer->size - 1 || first + slice > count ? count - first : slice;
      if (step == 0 && r == peer->rank) sum_buffers(peer, half, first, n, is_float, own + (size_t)first * width);
      if (step == 1) {
        memcpy((char*)data + (size_t)first * width, peer->ranks[r].data[half] + (size_t)first * width, (size_t)n * width);
      }
    }
    if (step == 0) raise_and_await(peer);
  }
}

static void open_peer(struct peer* peer, struct tensor_parallel* tp) {
  char name[64];
  int32_t id = (int32_t)getpid();
  if (cohort_broadcast(tp->group, &id, 1, COHORT_INT32, 0, NULL, NULL)) fail("broadcast");
  snprintf(name, sizeof name, "/inference-rank-%d", (int)id);
  const int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  const size_t bytes = sizeof(struct peer_buffer) * (size_t)tp->size;
  if (file < 0 || ftruncate(file, (off_t)bytes)) fail(strerror(errno));
  peer->ranks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (peer->ranks == MAP_FAILED) fail(strerror(errno));
  close(file);
  if (cohort_barrier(tp->group, NULL, NULL)) fail("barrier");
  if (tp->rank == 0) shm_unlink(name);
  peer->calls = 0;
  peer->rank = tp->rank;
  peer->size = tp->size;
}

enum way { MEMORY, WINDOW, ONE_SHOT, TWO_SHOTS, WAYS };
static const char* const names[WAYS] = {"memory", "window", "one shot", "two shots"};

struct bench {
  struct tensor_parallel tp;
  struct peer peer;
  void* memory; /* as an engine's allocator gives it */
  void* input;  /* the partial product of this rank */
  int ways;
};

static void call(struct bench* b, enum way way, void* data, int64_t count, int is_float) {
  const cohort_type type = is_float ? COHORT_FLOAT32 : COHORT_BFLOAT16;
  if (way == ONE_SHOT) {
    one_shot(&b->peer, data, count, is_float);
  } else if (way == TWO_SHOTS) {
    two_shots(&b->peer, data, count, is_float);
  } else if (tensor_parallel_all_reduce(&b->tp, data, count, type)) {
    fail("all-reduce");
  }
}

static float small_number(int rank, int64_t i) { return (float)((i * 7 + rank * 3) % 16) - 4; }

static void check(const struct bench* b, const void* data, int64_t count, int is_float, enum way way) {
  for (int64_t i = 0; i < count; ++i) {
    float expected = 0;
    for (int r = 0; r < b->tp.size; ++r) expected += small_number(r, i);
    const float found = is_float ? ((const float*)data)[i] : widened(((const uint16_t*)data)[i]);
    if (found == expected) continue;
    fprintf(stderr, "inference_rank: %s: element %lld is %g, not %g\n", names[way], (long long)i, found, expected);
    exit(1);
  }
}

static double microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

/* The median time of `calls` calls. The input is written before each call, as a product would. The peers copy it into
 * shared memory within the call, as ours does from `memory`; in a window it lies there already. */
static double timed(struct bench* b, enum way way, int64_t count, int is_float, int calls, double* times) {
  void* data = way == WINDOW ? tensor_parallel_memory(&b->tp) : b->memory;
  const size_t bytes = (size_t)count * (is_float ? 4 : 2);
  for (int i = 0; i < calls; ++i) {
    memcpy(data, b->input, bytes);
    const double begun = microseconds();
    call(b, way, data, count, is_float);
    times[i] = microseconds() - begun;
  }
  check(b, data, count, is_float, way);
  qsort(times, (size_t)calls, sizeof *times, by_value);
  return times[calls / 2];
}

static double slowest(const struct bench* b, double mine) {
  if (cohort_all_reduce(b->tp.group, &mine, &mine, 1, COHORT_FLOAT64, COHORT_MAX, NULL, NULL)) fail("all-reduce");
  return mine;
}

/* Ways take turns. A turn's time is the slowest rank's median. A way's time is the first decile of its turns, since in
 * the slower ones other programs had the CPUs. */
static void measure(struct bench* b, int64_t count, int is_float, int turns, double* times) {
  double found[WAYS][TURNS];
  for (int64_t i = 0; i < count; ++i) {
    if (is_float) ((float*)b->input)[i] = small_number(b->tp.rank, i);
    if (!is_float) ((uint16_t*)b->input)[i] = rounded(small_number(b->tp.rank, i));
  }
  for (int turn = 0; turn < turns; ++turn) {
    for (int way = 0; way < b->ways; ++way) {
      const double one = slowest(b, timed(b, (enum way)way, count, is_float, 5, times));
      const double calls = turns == 1 ? 0 : TURN_US / (one + 0.1);
      found[way][turn] = slowest(b, timed(b, (enum way)way, count, is_float,
                                          calls < LEAST_CALLS ? LEAST_CALLS : calls > MOST_CALLS ? MOST_CALLS : (int)calls,
                                          times));
    }
  }
  for (int way = 0; way < b->ways && b->tp.rank == 0; ++way) {
    qsort(found[way], (size_t)turns, sizeof *found[way], by_value);
    printf("point %s,%d,%lld,%.3f\n", names[way], is_float ? 32 : 16, (long long)(count * (is_float ? 4 : 2)),
           found[way][turns / 10]);
  }
  fflush(stdout);
}

int main(int argc, char** argv) {
  static double times[MOST_CALLS];
  struct bench b = {.ways = WAYS};
  int checks = 0;
  for (int i = 1; i < argc; ++i) {
    if (!strcmp(argv[i], "--check")) checks = 1;
    if (!strcmp(argv[i], "--no-peer")) b.ways = ONE_SHOT;
  }
  if (tensor_parallel_begin(&b.tp, MOST_BYTES)) {
    fprintf(stderr, "inference_rank: start: %s\n", b.tp.reason);
    return 1;
  }
  if (b.ways == WAYS) open_peer(&b.peer, &b.tp);
  b.memory = aligned_alloc(64, MOST_BYTES);
  b.input = aligned_alloc(64, MOST_BYTES);
  if (!b.memory || !b.input) fail("memory");
  for (int is_float = 0; is_float < 2; ++is_float) {
    for (int64_t bytes = 8192; bytes <= MOST_BYTES; bytes *= 2) {
      measure(&b, bytes / (is_float ? 4 : 2), is_float, checks ? 1 : TURNS, times);
    }
  }
  free(b.memory);
  free(b.input);
  tensor_parallel_end(&b.tp);
  return 0;
}
