/* LightGBM's network over Cohort: the two functions that LGBM_NetworkInitWithFunctions takes.
 *
 *   cc -O2 -shared -fPIC lightgbm_network.c -o liblightgbm_network.so $(pkg-config --cflags --libs cohort-c)
 *
 * It links nothing of LightGBM. lightgbm_over_cohort.py loads it and runs a Python program unchanged; a program in C or
 * C++ calls lightgbm_network_begin itself. LightGBM keeps its network per thread, so the thread that trains calls. */
#include <cohort/cohort.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LightGBM's types: lengths and starts are in bytes; the reduction combines `in` into `out`. */
typedef void (*lightgbm_reduction)(const char* in, char* out, int type_size, int32_t bytes);
typedef int (*lightgbm_init)(int machines, int rank, void* reduce_scatter, void* all_gather);

struct reduction {
  lightgbm_reduction combine;
  int type_size;
};

static cohort_runtime job = NULL;
static cohort_comm world = NULL;
static int32_t rank = 0, size = 0;

/* LightGBM expects that its network never fails, so the process ends. dlaunch reports it and ends the job. */
static void check(cohort_status status, const char* what) {
  if (!status) return;
  fprintf(stderr, "LightGBM's %s over Cohort: %s: %s\n", what, cohort_status_name(status), cohort_last_error());
  exit(1);
}

static void combine(void* out, const void* a, const void* b, int64_t count, cohort_type type, void* context) {
  const struct reduction* reduction = context;
  const int32_t bytes = (int32_t)(count * reduction->type_size);
  (void)type;
  if (out == b) {
    reduction->combine(a, out, reduction->type_size, bytes);
    return;
  }
  if (out != a) memcpy(out, a, (size_t)bytes);
  reduction->combine(b, out, reduction->type_size, bytes);
}

/* From bytes, as LightGBM counts, to elements of `type_size` bytes. Freed by the caller. */
static int64_t* in_elements(const int32_t* bytes, int type_size) {
  int64_t* elements = malloc((size_t)size * sizeof *elements);
  if (!elements) check(COHORT_RESOURCE_EXHAUSTED, "memory");
  for (int32_t i = 0; i < size; ++i) elements[i] = bytes[i] / type_size;
  return elements;
}

static void reduce_scatter(char* in, int32_t in_bytes, int type_size, const int32_t* starts, const int32_t* lengths,
                           int blocks, char* out, int32_t out_bytes, const lightgbm_reduction* combination) {
  struct reduction reduction = {*combination, type_size};
  int64_t* counts = in_elements(lengths, type_size);
  int64_t* displacements = in_elements(starts, type_size);
  cohort_op op = NULL;
  (void)in_bytes, (void)blocks, (void)out_bytes;
  check(cohort_op_create(combine, &reduction, "LightGBM's reduction", 1, &op), "reduction");
  check(cohort_reduce_scatter_v(world, in, counts, displacements, out, COHORT_BLOCK(type_size), op, NULL, NULL),
        "reduce-scatter");
  check(cohort_op_free(op), "reduction");
  free(displacements);
  free(counts);
}

/* LightGBM also passes an `in` that lies anywhere in `out`. The own block goes to its place first. */
static void all_gather(char* in, int32_t in_bytes, const int32_t* starts, const int32_t* lengths, int blocks, char* out,
                       int32_t out_bytes) {
  int64_t* counts = in_elements(lengths, 1);
  int64_t* displacements = in_elements(starts, 1);
  (void)blocks, (void)out_bytes;
  memmove(out + starts[rank], in, (size_t)in_bytes);
  check(cohort_all_gather_v(world, out + starts[rank], out, counts, displacements, COHORT_UINT8, NULL, NULL),
        "all-gather");
  free(displacements);
  free(counts);
}

/* Joins the job and hands both functions to `init`, the address of LGBM_NetworkInitWithFunctions. May be called again,
 * as by the next booster. Returns what `init` does, -1 where the job cannot be joined. */
int lightgbm_network_begin(lightgbm_init init) {
  union {
    void (*reduce_scatter)(char*, int32_t, int, const int32_t*, const int32_t*, int, char*, int32_t,
                           const lightgbm_reduction*);
    void (*all_gather)(char*, int32_t, const int32_t*, const int32_t*, int, char*, int32_t);
    void* address;
  } scatters, gathers;
  if (!world) {
    cohort_status status = cohort_init(NULL, &job);
    if (!status) status = cohort_world(job, NULL, &world);
    if (!status) status = cohort_comm_rank(world, &rank);
    if (!status) status = cohort_comm_size(world, &size);
    if (status) {
      fprintf(stderr, "LightGBM's network over Cohort: %s\n", cohort_last_error());
      if (world) cohort_comm_free(world);
      if (job) cohort_finalize(job);
      world = NULL;
      job = NULL;
      return -1;
    }
  }
  scatters.reduce_scatter = reduce_scatter;
  gathers.all_gather = all_gather;
  return init(size, rank, scatters.address, gathers.address);
}

/* Leaves the job, after LGBM_NetworkFree. */
void lightgbm_network_end(void) {
  if (world) check(cohort_comm_free(world), "end");
  if (job) check(cohort_finalize(job), "end");
  world = NULL;
  job = NULL;
}
