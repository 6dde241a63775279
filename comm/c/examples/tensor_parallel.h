/* The all-reduce of tensor-parallel inference on CPUs: each rank has a partial product of a layer, and every rank needs
 * the sum. One header over cohort.h, for an operator of an inference engine.
 *
 *   struct tensor_parallel tp;
 *   if (tensor_parallel_begin(&tp, 1 << 20)) ...           // the largest activation, in bytes
 *   float* hidden = tensor_parallel_memory(&tp);           // let the product write here
 *   tensor_parallel_all_reduce(&tp, hidden, n, COHORT_FLOAT32);
 *
 * Every rank calls in the same order. Ranks of one host meet in shared memory, those of several hosts over the network;
 * the caller need not know. The sum of bfloat16 is computed in float32 and rounded once. It is the same on all ranks.
 */
#pragma once

#include <cohort/cohort.h>
#include <stdio.h>
#include <string.h>

struct tensor_parallel {
  cohort_runtime job;
  cohort_comm group;
  cohort_window window;
  void* memory;
  int32_t rank;
  int32_t size;
  char reason[512]; /* of a failed start */
};

/* Leaves the job. */
static inline void tensor_parallel_end(struct tensor_parallel* tp) {
  if (tp->window) cohort_window_free(tp->window);
  if (tp->group) cohort_comm_free(tp->group);
  if (tp->job) cohort_finalize(tp->job);
  memset(tp, 0, sizeof *tp);
}

/* Joins the job and allocates `bytes` of memory that all ranks of the host map. After a failure tp->reason says why. */
static inline cohort_status tensor_parallel_begin(struct tensor_parallel* tp, size_t bytes) {
  memset(tp, 0, sizeof *tp);
  cohort_status status = cohort_init(NULL, &tp->job);
  if (!status) status = cohort_world(tp->job, NULL, &tp->group);
  if (!status) status = cohort_comm_rank(tp->group, &tp->rank);
  if (!status) status = cohort_comm_size(tp->group, &tp->size);
  if (!status) status = cohort_window_allocate(tp->group, bytes, NULL, &tp->window);
  if (!status) status = cohort_window_memory(tp->window, &tp->memory, NULL);
  if (status) {
    char reason[sizeof tp->reason];
    snprintf(reason, sizeof reason, "%s", cohort_last_error()); /* before leaving, which may fail as well */
    tensor_parallel_end(tp);
    memcpy(tp->reason, reason, sizeof reason);
  }
  return status;
}

/* Memory for activations. An all-reduce there moves each byte once; in other memory it copies into shared memory. */
static inline void* tensor_parallel_memory(const struct tensor_parallel* tp) { return tp->memory; }

/* Sums `data` over all ranks in place. `type` is COHORT_FLOAT32 or COHORT_BFLOAT16. */
static inline cohort_status tensor_parallel_all_reduce(struct tensor_parallel* tp, void* data, int64_t count,
                                                       cohort_type type) {
  return cohort_all_reduce(tp->group, data, data, count, type, COHORT_SUM, NULL, NULL);
}
