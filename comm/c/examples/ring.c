/* A first program in C: a ring of messages, a sum over all ranks, and a reduction of structs.
 *
 *   cc ring.c -o ring $(pkg-config --cflags --libs cohort-c)
 *   dlaunch --nproc-per-node 4 ring
 */
#include <cohort/cohort.h>
#include <stdio.h>

struct place {
  double value;
  int64_t rank;
};

/* The smaller value and its rank: MPI's MINLOC. */
static void smaller(void* out, const void* a, const void* b, int64_t count, cohort_type type, void* context) {
  const struct place* x = a;
  const struct place* y = b;
  struct place* least = out;
  (void)type, (void)context;
  for (int64_t i = 0; i < count; ++i) {
    const int second = y[i].value < x[i].value || (y[i].value == x[i].value && y[i].rank < x[i].rank);
    least[i] = second ? y[i] : x[i];
  }
}

/* Passes every rank's number once around. The sum of those that came by is returned in *sum. */
static cohort_status ring(cohort_comm world, int32_t rank, int32_t size, int32_t* sum) {
  int32_t passing = rank;
  *sum = rank;
  for (int32_t step = 1; step < size; ++step) {
    int32_t arrived = 0;
    cohort_status status = cohort_batch_begin(world);
    if (!status) status = cohort_send(world, &passing, 1, COHORT_INT32, (rank + 1) % size, NULL, NULL);
    if (!status) status = cohort_receive(world, &arrived, 1, COHORT_INT32, (rank + size - 1) % size, NULL, NULL);
    if (!status) status = cohort_batch_end(world, NULL);
    if (status) return status;
    passing = arrived;
    *sum += arrived;
  }
  return COHORT_OK;
}

/* The same sum by a reduction that goes on while the program does something else. */
static cohort_status sum_of_all(cohort_comm world, int32_t rank, double* sum) {
  cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
  cohort_work work = NULL;
  *sum = rank;
  options.timeout_ns = INT64_C(60000000000);
  cohort_status status = cohort_all_reduce(world, sum, sum, 1, COHORT_FLOAT64, COHORT_SUM, &options, &work);
  if (status) return status;
  do {
    status = cohort_work_wait(work, 1000000); /* then this rank could compute for a while */
  } while (status == COHORT_PENDING);
  const cohort_status freed = cohort_work_free(work);
  return status ? status : freed;
}

static cohort_status least_of_all(cohort_comm world, int32_t rank, int32_t size, struct place* least) {
  cohort_op op = NULL;
  struct place mine = {0, rank};
  mine.value = rank == size / 2 ? -1.5 : rank;
  cohort_status status = cohort_op_create(smaller, NULL, "least place", 1, &op);
  if (status) return status;
  status = cohort_all_reduce(world, &mine, least, 1, COHORT_BLOCK(sizeof mine), op, NULL, NULL);
  const cohort_status freed = cohort_op_free(op);
  return status ? status : freed;
}

static cohort_status run(cohort_comm world) {
  int32_t rank = 0, size = 0, around = 0;
  double sum = 0;
  struct place least = {0, 0};
  cohort_status status = cohort_comm_rank(world, &rank);
  if (!status) status = cohort_comm_size(world, &size);
  if (!status) status = ring(world, rank, size, &around);
  if (!status) status = sum_of_all(world, rank, &sum);
  if (!status) status = least_of_all(world, rank, size, &least);
  if (!status && rank == 0) {
    printf("%d ranks, around the ring %d, all-reduce %g, least %g on rank %d\n", (int)size, (int)around, sum,
           least.value, (int)least.rank);
  }
  return status;
}

int main(void) {
  cohort_runtime job = NULL;
  cohort_comm world = NULL;
  cohort_status status = cohort_init(NULL, &job);
  if (!status) status = cohort_world(job, NULL, &world);
  if (!status) status = run(world);
  if (status) fprintf(stderr, "ring: %s: %s\n", cohort_status_name(status), cohort_last_error());
  if (world) cohort_comm_free(world);
  if (job && cohort_finalize(job) && !status) {
    fprintf(stderr, "ring: %s\n", cohort_last_error());
    status = COHORT_INTERNAL;
  }
  return status ? 1 : 0;
}
