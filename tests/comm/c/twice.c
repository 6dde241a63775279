/* A program that joins its job in two parts at the same time, as two libraries would that know nothing of each other, and
 * once more after both have left. Prints what the other examples print. */
#include <cohort/cohort.h>
#include <stdio.h>

static cohort_status join(cohort_runtime* job, cohort_comm* world) {
  cohort_status status = cohort_init(NULL, job);
  return status ? status : cohort_world(*job, NULL, world);
}

static cohort_status add(cohort_comm world, int64_t* sum) {
  int32_t rank = 0;
  cohort_status status = cohort_comm_rank(world, &rank);
  *sum = rank;
  return status ? status : cohort_all_reduce(world, sum, sum, 1, COHORT_INT64, COHORT_SUM, NULL, NULL);
}

static cohort_status leave(cohort_runtime job, cohort_comm world) {
  cohort_status status = cohort_comm_free(world);
  return status ? status : cohort_finalize(job);
}

int main(void) {
  cohort_runtime jobs[3] = {NULL, NULL, NULL};
  cohort_comm worlds[3] = {NULL, NULL, NULL};
  int64_t sums[3] = {-1, -1, -1};
  int32_t rank = 0, size = 0;
  cohort_status status = join(&jobs[0], &worlds[0]);
  if (!status) status = join(&jobs[1], &worlds[1]);
  if (!status) status = add(worlds[1], &sums[1]);
  if (!status) status = add(worlds[0], &sums[0]);
  if (!status) status = cohort_comm_rank(worlds[0], &rank);
  if (!status) status = cohort_comm_size(worlds[0], &size);
  if (!status) status = leave(jobs[0], worlds[0]);
  if (!status) status = add(worlds[1], &sums[1]);
  if (!status) status = leave(jobs[1], worlds[1]);
  if (!status) status = join(&jobs[2], &worlds[2]);
  if (!status) status = add(worlds[2], &sums[2]);
  if (!status) status = leave(jobs[2], worlds[2]);
  if (status) {
    fprintf(stderr, "twice: %s\n", cohort_last_error());
    return 1;
  }
  if (sums[0] != sums[1] || sums[1] != sums[2]) return 2;
  if (rank == 0) {
    printf("%d ranks, around the ring %d, all-reduce %d, least -1.5 on rank %d\n", (int)size, (int)sums[0], (int)sums[2],
           (int)size / 2);
  }
  return 0;
}
