/* Cohort's C interface: collective communication for programs and libraries in C and in languages that call C. C99.
 *
 *   #include <cohort/cohort.h>
 *   #include <stdio.h>
 *   int main(void) {
 *     cohort_runtime job = NULL;
 *     cohort_comm world = NULL;
 *     float sum = 1;
 *     if (cohort_init(NULL, &job) || cohort_world(job, NULL, &world) ||
 *         cohort_all_reduce(world, &sum, &sum, 1, COHORT_FLOAT32, COHORT_SUM, NULL, NULL))
 *       return fprintf(stderr, "%s\n", cohort_last_error()), 1;
 *     printf("%g ranks\n", sum);
 *     return cohort_comm_free(world) || cohort_finalize(job);
 *   }
 *
 * Errors. A function returns COHORT_OK or the reason, and cohort_last_error() has its text. No function ends the
 * program. These come from many functions and are not repeated below:
 *
 *   COHORT_INVALID_ARGUMENT     an argument is wrong. It was decided here: nothing was sent, and the group goes on
 *   COHORT_INVALID_HANDLE       a handle is null, of another kind, or was freed
 *   COHORT_BUSY                 another thread is using this handle, or this thread in a reduction function
 *   COHORT_RESOURCE_EXHAUSTED   no memory, or 2^20 handles of a kind exist: nothing was begun, or the group has failed
 *   COHORT_INTERNAL             an exception of a reduction function, or a defect in Cohort
 *
 * and these from operations, collective calls and everything that communicates. Unless a line says otherwise they are
 * the end of the group, which then returns the first of them from all calls, also from cohort_comm_state. Functions of
 * a runtime (cohort_init, cohort_put, ...) return the same numbers, which concern no group.
 *
 *   COHORT_FAILED_PRECONDITION  the members' calls do not match or wait for each other, or after cohort_finalize. A
 *                               member that receives nothing in such a call, as each of two roots, gets it from its
 *                               next one. The group goes on where a call was refused for a batch, or in a child of fork
 *   COHORT_UNAVAILABLE          a member died (the text names it)
 *   COHORT_DEADLINE_EXCEEDED    the timeout of the call passed (the text names the absent ranks)
 *   COHORT_ABORTED              a member called cohort_comm_abort, or freed its communicator amid a call
 *   COHORT_UNIMPLEMENTED        nothing can serve this call (the text has the remedy). The group goes on
 *
 * Handles. The pointer types are never dereferenced: they hold a number, a kind and a generation. A freed handle is
 * always detected, also when its place is in use again. COHORT_NULL (NULL) is no handle.
 *
 * Threads. One thread at a time uses a handle; a second one gets COHORT_BUSY, and the first is not disturbed. Threads
 * may use different handles at the same time. A wait uses its work alone, so another thread may start calls meanwhile.
 * It may also while an operation blocks, which uses its communicator only until it has begun; a reduction of blocks
 * (cohort_op_create) uses it until the other ranks have called. Several threads may use one runtime, except to finalize
 * it. A thread that is cancelled (pthread_cancel) ends after the call that it is in.
 *
 * Forks. In a child of fork the handles of its parent are the parent's. Calls and waits are refused there
 * (COHORT_FAILED_PRECONDITION); rank, size and members may be asked, and handles freed. A child may call cohort_init
 * for itself where its parent has not. A child that was forked while another thread was in a function of this library
 * must end by exec or _exit.
 *
 * Lifetime. Communicators, windows and works keep their runtime alive inside. They may be freed in any order, also
 * after cohort_finalize, which makes their calls fail.
 *
 * Memory. Buffers belong to the caller. They must stay valid, and inputs unchanged, until the call is done. A buffer of
 * no elements may be null. Counts and displacements are in elements of the call's type. No buffer has more than 2^56
 * bytes. In place works as in NCCL; every other overlap is refused:
 *
 *   all_reduce, broadcast, reduce, all_to_all   out == in
 *   all_gather, gather (root)                   in == out + rank * count
 *   reduce_scatter, scatter (root)              out == in + rank * count
 *   all_gather_v, gather_v (root)               in == out + displacements[rank]
 *   reduce_scatter_v, scatter_v (root)          out == in + displacements[rank]
 *   all_to_all_v                                out == in, with the same counts and displacements for both
 *
 * Order. All members of a group make the same collective calls in the same order. Times are in nanoseconds. An argument
 * `options` may be null.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The version of this interface. A larger minor only adds; a larger major has another library name. */
#define COHORT_C_MAJOR 1
#define COHORT_C_MINOR 0

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t cohort_status;
enum {
  COHORT_OK = 0,
  COHORT_PENDING = 1, /* no error: the operation of a work is under way */
  COHORT_INVALID_ARGUMENT = 2,
  COHORT_INVALID_HANDLE = 3,
  COHORT_BUSY = 4,
  COHORT_DEADLINE_EXCEEDED = 5,
  COHORT_UNAVAILABLE = 6,
  COHORT_ABORTED = 7,
  COHORT_CANCELLED = 8, /* the communicator was freed before the operation was done */
  COHORT_FAILED_PRECONDITION = 9,
  COHORT_NOT_FOUND = 10,
  COHORT_RESOURCE_EXHAUSTED = 11,
  COHORT_UNIMPLEMENTED = 12,
  COHORT_INTERNAL = 13
};

/* The type of elements. COHORT_BLOCK(n) is an opaque block of n bytes, 1 to 16777216, such as a struct; with another n
 * it is no type. It evaluates n more than once. Members' calls must agree on n. Blocks are moved by every call, and
 * combined by functions of the caller's (cohort_op_create). */
typedef int32_t cohort_type;
enum {
  COHORT_INT8 = 1,
  COHORT_UINT8 = 2,
  COHORT_INT16 = 3,
  COHORT_UINT16 = 4,
  COHORT_INT32 = 5,
  COHORT_UINT32 = 6,
  COHORT_INT64 = 7,
  COHORT_UINT64 = 8,
  COHORT_FLOAT16 = 9,
  COHORT_BFLOAT16 = 10,
  COHORT_FLOAT32 = 11,
  COHORT_FLOAT64 = 12,
  COHORT_FLOAT8_E4M3 = 13, /* without infinity, as torch.float8_e4m3fn */
  COHORT_FLOAT8_E5M2 = 14,
  COHORT_BLOCK_BASE = 0x40000000
};
#define COHORT_BLOCK(bytes) \
  ((cohort_type)((bytes) > 0 && (bytes) <= 16777216 ? COHORT_BLOCK_BASE + (int32_t)(bytes) : COHORT_BLOCK_BASE))

/* Levels of cohort_call_options.determinism: what the bits of a reduction depend on besides the inputs. 0 is the
 * communicator's own level. All ranks get the same bits from one call at every level, but
 * for the sign and payload of NaNs. */
enum {
  COHORT_FAST = 1,           /* on the algorithm, which measured times choose */
  COHORT_REPRODUCIBLE = 2,   /* on the group and its machines: every run gives the same */
  COHORT_ORDER_INVARIANT = 3 /* on nothing: ((x0 op x1) op x2) op ..., in the order of ranks */
};
/* Kinds of memory. */
enum { COHORT_HOST = 0, COHORT_CUDA = 1 };
/* A timeout that never passes, for waits. */
#define COHORT_FOREVER INT64_MAX

#define COHORT_NULL NULL
typedef struct cohort_runtime_handle* cohort_runtime;
typedef struct cohort_comm_handle* cohort_comm;
typedef struct cohort_work_handle* cohort_work;
typedef struct cohort_window_handle* cohort_window;
typedef struct cohort_op_handle* cohort_op; /* of cohort_op_create, or one of these: */
#define COHORT_SUM ((cohort_op)1)
#define COHORT_PRODUCT ((cohort_op)2)
#define COHORT_MIN ((cohort_op)3)
#define COHORT_MAX ((cohort_op)4)
#define COHORT_AVG ((cohort_op)5)  /* integers truncate towards zero */
#define COHORT_BAND ((cohort_op)6) /* bitwise: integers only */
#define COHORT_BOR ((cohort_op)7)
#define COHORT_BXOR ((cohort_op)8)
#define COHORT_PREMUL_SUM ((cohort_op)9) /* each rank's input times its own cohort_call_options.factor */

/* Options begin with their size in bytes, so that later versions can add members. Fill them from the INIT macro. A size
 * that is larger than the library's is accepted while the members beyond are zero (else COHORT_UNIMPLEMENTED). */

/* A key-value store by which ranks meet that another launcher started, such as MPI, a scheduler or a server. It serves
 * one cohort_init of each rank: a second one needs new keys, such as a prefix. The functions are called from any
 * thread, also several at once, until cohort_finalize has returned and the communicators and windows of the runtime are
 * freed: to join, when a call reaches a peer for the first time, and for cohort_put and cohort_get. They return 0, or
 * anything else for failure. `get` returns COHORT_UNAVAILABLE where the store itself has failed; any other failure says
 * that the key has not come in time. Keys are printable ASCII text of at most 1034 bytes, values have at most 49152
 * bytes, and each key is put once. It has no INIT macro: {sizeof(cohort_store), rank, ranks, put, get, context}. */
typedef struct cohort_store {
  size_t size;   /* sizeof(cohort_store) */
  int32_t rank;  /* of this process, below `ranks` */
  int32_t ranks; /* at least 1 */
  int (*put)(void* context, const char* key, const void* value, size_t bytes);
  /* Waits for the key at most `timeout_ns`, and writes the value and its length. `capacity` is 49152. */
  int (*get)(void* context, const char* key, int64_t timeout_ns, void* value, size_t capacity, size_t* bytes);
  void* context;
} cohort_store;

typedef struct cohort_init_options {
  size_t size;
  int64_t timeout_ns;         /* 0: one minute */
  const cohort_store* store;  /* null: join as the environment says. Copied */
  int32_t progress_thread;    /* 1: operations progress while the program computes */
  int32_t no_deadlock_checks; /* 1: a thread may sleep for over 30 s before its first call, for which others wait */
} cohort_init_options;
#define COHORT_INIT_OPTIONS_INIT {sizeof(cohort_init_options), 0, NULL, 0, 0}

typedef struct cohort_runtime_info {
  size_t size;  /* set by the caller */
  int32_t rank; /* in the world */
  int32_t world_size;
  int32_t node;
  int32_t nodes;
  int32_t local_rank; /* among the ranks of this node */
  int32_t local_size;
  int32_t devices; /* that each rank owns */
  int32_t reserved;
  uint64_t epoch; /* 1, and more after restarts */
} cohort_runtime_info;
#define COHORT_RUNTIME_INFO_INIT {sizeof(cohort_runtime_info), 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct cohort_comm_options {
  size_t size;
  const char* transports; /* the ones allowed, of "shm,ucx,tcp"; equal on all ranks; null: all that fit */
  const char* tuning;     /* rules for algorithms, such as "all_reduce:1M-=ring"; equal on all ranks; null: none */
  int32_t determinism;    /* default of all reductions, equal on all ranks; 0: COHORT_FAST */
  int32_t reserved;       /* 0 */
} cohort_comm_options;
#define COHORT_COMM_OPTIONS_INIT {sizeof(cohort_comm_options), NULL, NULL, 0, 0}

typedef struct cohort_call_options {
  size_t size;
  double factor;         /* of COHORT_PREMUL_SUM on this rank */
  int64_t timeout_ns;    /* of the operation; then the group fails on all members. 0: 10 minutes. Negative: at once */
  const char* algorithm; /* forces one, such as "ring"; equal on all members; null: the fastest. Copied. The error of an
                          * unknown name lists those of the call */
  uint64_t tag;          /* must be equal on all members, and is named in errors; 0: none */
  void* stream;          /* the cudaStream_t of CUDA buffers */
  const char* file;      /* the place of the call, for messages: set by the INIT macro. Copied */
  int32_t line;
  int32_t determinism; /* of a reduction; equal on all members; 0: the communicator's */
  int32_t memory;      /* of all buffers of the call: COHORT_HOST or COHORT_CUDA */
  int32_t device;      /* CUDA ordinal in this process */
} cohort_call_options;
#define COHORT_CALL_OPTIONS_INIT \
  {sizeof(cohort_call_options), 1.0, 0, NULL, 0, NULL, __FILE__, __LINE__, 0, COHORT_HOST, 0}

/* ---- Version, features, errors: local, from any thread, never fail --------------------------------------------- */

/* The version of the library: 10000 * COHORT_C_MAJOR + COHORT_C_MINOR of its own header. */
int32_t cohort_c_version(void);
/* The version of Cohort, such as "0.1.0". Lives as long as the process. */
const char* cohort_version(void);
/* 1 if the library has the feature, 0 if not or if it does not know the name (or null). Names: "batch", "blocks",
 * "device_memory", "send_receive", "store", "user_reductions", "variable_counts", "window". "device_memory" says that
 * CUDA buffers can be passed; whether a GPU and NCCL are there, a call says. */
int32_t cohort_has_feature(const char* name);
/* "invalid argument", ...; "unknown status" for other numbers. Lives as long as the process. */
const char* cohort_status_name(cohort_status status);
/* The text of the last error that a function returned to this thread, at most 4095 bytes; "" before the first. It stays
 * valid until the next error in this thread, which replaces it. May be asked until the process ends. */
const char* cohort_last_error(void);
/* Bytes of one element; 0 for a number that is no type. */
int64_t cohort_type_bytes(cohort_type type);

/* ---- Runtime: the membership of this process in its job --------------------------------------------------------- */

/* Joins the job: under dlaunch as the rank that it started, with `options->store` among the ranks that meet there, else
 * as a world of one. Blocks until this rank knows its place, and until another thread that joins or leaves without a
 * store has done so. May be called again after cohort_finalize. A process that
 * has joined without a store gets another handle of the same membership, with the options of the first: libraries that
 * know nothing of each other each call it, and make worlds of their own, in the same order on all ranks. Errors:
 * COHORT_DEADLINE_EXCEEDED, COHORT_UNAVAILABLE (no peer, no agent), COHORT_FAILED_PRECONDITION (another launcher's
 * variables say that there are several ranks, or this process joined by the C++ interface). On errors *runtime is
 * COHORT_NULL. */
cohort_status cohort_init(const cohort_init_options* options, cohort_runtime* runtime);
/* Frees the handle. The last handle of a membership ends this rank's part in order, without waiting for others: its
 * communicators then refuse calls (COHORT_FAILED_PRECONDITION) and must still be freed. Returns a failure that no call
 * has reported yet; the handle is freed then too. COHORT_BUSY: another thread is in a function of this runtime. */
cohort_status cohort_finalize(cohort_runtime runtime);
/* Fills *info up to info->size bytes, and sets info->size to the number of bytes that it has filled. Local. */
cohort_status cohort_get_info(cohort_runtime runtime, cohort_runtime_info* info);
/* Writes a value of at most 49152 bytes into the job's store, for addresses. Each key, 1 to 1024 printable ASCII
 * characters, is put once. Blocks for `timeout_ns` at most, or as long as cohort_store.put of the program does. Errors:
 * COHORT_DEADLINE_EXCEEDED (no answer in time), COHORT_UNAVAILABLE (the store or the agent has failed). */
cohort_status cohort_put(cohort_runtime runtime, const char* key, const void* value, size_t bytes, int64_t timeout_ns);
/* Waits until a rank has put the key, for `timeout_ns` at most, and copies its value. *bytes is the value's length,
 * also when it is larger than `capacity`: COHORT_INVALID_ARGUMENT, nothing is copied. Errors: COHORT_NOT_FOUND (nobody
 * had put it by then), COHORT_DEADLINE_EXCEEDED (no answer in time: it may be there), COHORT_UNAVAILABLE. */
cohort_status cohort_get(cohort_runtime runtime, const char* key, void* value, size_t capacity, size_t* bytes,
                         int64_t timeout_ns);
/* *stop is 1 when the job must end (preempted, or out of time) and every rank stops before `step`; all ranks get the
 * same answer. Every rank asks before each of its steps, with the same growing numbers. Does not block before the job
 * has heard that it must end; then it blocks until all ranks have asked, `timeout_ns` at most. Errors:
 * COHORT_DEADLINE_EXCEEDED, COHORT_UNAVAILABLE, COHORT_INVALID_ARGUMENT (a smaller step), COHORT_FAILED_PRECONDITION.
 */
cohort_status cohort_on_preemption(cohort_runtime runtime, uint64_t step, int64_t timeout_ns, int32_t* stop);

/* ---- Communicators: ordered groups of ranks --------------------------------------------------------------------- */

/* Makes the group of all ranks. All ranks call it, equally often; it waits for nobody. */
cohort_status cohort_world(cohort_runtime runtime, const cohort_comm_options* options, cohort_comm* comm);
/* Ranks with equal `color` form a group, ordered by (key, rank). With a negative color *out is COHORT_NULL. Collective.
 * Blocks for 10 minutes at most. */
cohort_status cohort_split(cohort_comm comm, int32_t color, int32_t key, cohort_comm* out);
/* Makes the group of these `count` ranks of `comm`, in this order. Only they call, with equal lists; it waits for
 * nobody. COHORT_INVALID_ARGUMENT: a number that is no rank, or stands twice, or the caller is not in the list. */
cohort_status cohort_subgroup(cohort_comm comm, const int32_t* ranks, int32_t count, cohort_comm* out);
/* Makes a group of the same members whose calls are independent of this one's. All members call, equally often; it
 * waits for nobody. */
cohort_status cohort_duplicate(cohort_comm comm, cohort_comm* out);
/* Makes the group of each member's device number `index`, below cohort_runtime_info.devices. As cohort_duplicate. */
cohort_status cohort_device_group(cohort_comm comm, int32_t index, cohort_comm* out);
/* Makes the group of the members that live, in the same order, after a rank has died (dlaunch --on-failure continue).
 * All of them call. Blocks until they have, `timeout_ns` at most. COHORT_DEADLINE_EXCEEDED: one has not called; the
 * caller may try again on the same `comm`. */
cohort_status cohort_shrink(cohort_comm comm, int64_t timeout_ns, cohort_comm* out);
/* Frees the communicator. Waits for no rank, but while another thread asks or aborts it, 10 s at most. Operations under
 * way end with COHORT_CANCELLED here and COHORT_ABORTED on other members. A batch that is open is dropped. Windows made
 * on it stay. */
cohort_status cohort_comm_free(cohort_comm comm);
/* Local. These two also serve within a reduction function. */
cohort_status cohort_comm_rank(cohort_comm comm, int32_t* rank);
cohort_status cohort_comm_size(cohort_comm comm, int32_t* size);
/* Writes the members' world ranks, in the order of group ranks. `capacity` is at least the size of the group. Local. */
cohort_status cohort_comm_members(cohort_comm comm, int32_t* world_ranks, int32_t capacity);
/* COHORT_OK, or the error with which the group has failed. Local. */
cohort_status cohort_comm_state(cohort_comm comm);
/* Fails the group on all its members with COHORT_ABORTED, unless it has failed. Does not wait. Allowed in a reduction
 * function. `reason` (null: none) becomes part of the others' text. */
cohort_status cohort_comm_abort(cohort_comm comm, const char* reason);

/* ---- Operations --------------------------------------------------------------------------------------------------
 *
 * `work` null: the function blocks until the operation is done, and returns its result. Otherwise it returns at once:
 * COHORT_OK means that the operation has begun, and *work is a new work to be freed. A refused call returns its
 * error, and *work is COHORT_NULL. `in` and `out` hold `count` elements unless the comment says more. `size` and `rank`
 * are the group's. Between cohort_batch_begin and cohort_batch_end `work` is null, and the function only notes the
 * call. */

/* out[i] = op over all ranks of in[i]. */
cohort_status cohort_all_reduce(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type,
                                cohort_op op, const cohort_call_options* options, cohort_work* work);
/* The same, but only root's `out` is written; elsewhere it may be null. */
cohort_status cohort_reduce(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type, cohort_op op,
                            int32_t root, const cohort_call_options* options, cohort_work* work);
/* Copies root's buffer into everyone's. */
cohort_status cohort_broadcast(cohort_comm comm, void* buffer, int64_t count, cohort_type type, int32_t root,
                               const cohort_call_options* options, cohort_work* work);
/* Root's `out` has size * count elements: rank r's `in` at r * count. Elsewhere it may be null. */
cohort_status cohort_gather(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type, int32_t root,
                            const cohort_call_options* options, cohort_work* work);
/* Root's `in` has size * count elements; rank r gets those from r * count on. Elsewhere it may be null. */
cohort_status cohort_scatter(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type, int32_t root,
                             const cohort_call_options* options, cohort_work* work);
/* `out` has size * count elements on every rank. */
cohort_status cohort_all_gather(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type,
                                const cohort_call_options* options, cohort_work* work);
/* `in` has size * count elements; rank r gets block r of the elementwise op. */
cohort_status cohort_reduce_scatter(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type,
                                    cohort_op op, const cohort_call_options* options, cohort_work* work);
/* Both have size * count elements: block s of rank r's `in` becomes block r of rank s's `out`. */
cohort_status cohort_all_to_all(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type,
                                const cohort_call_options* options, cohort_work* work);

/* Variable counts. Lists have `size` numbers and are read during the call only. The block of rank r has counts[r]
 * elements from displacements[r] on. Null displacements: one block after another. Blocks of `out` must not overlap.
 * Ranks that disagree on a count fail with COHORT_FAILED_PRECONDITION, which names both numbers; CUDA memory has no
 * such check. */

/* Rank r's `in` of in_count elements becomes block r of root's `out`. The lists are read on root only. */
cohort_status cohort_gather_v(cohort_comm comm, const void* in, int64_t in_count, void* out, const int64_t* counts,
                              const int64_t* displacements, cohort_type type, int32_t root,
                              const cohort_call_options* options, cohort_work* work);
/* Rank r gets block r of root's `in`, out_count elements. The lists are read on root only. */
cohort_status cohort_scatter_v(cohort_comm comm, const void* in, const int64_t* counts, const int64_t* displacements,
                               void* out, int64_t out_count, cohort_type type, int32_t root,
                               const cohort_call_options* options, cohort_work* work);
/* Rank r's `in`, counts[r] elements, becomes block r of everyone's `out`. Counts are equal on all ranks. */
cohort_status cohort_all_gather_v(cohort_comm comm, const void* in, void* out, const int64_t* counts,
                                  const int64_t* displacements, cohort_type type, const cohort_call_options* options,
                                  cohort_work* work);
/* Rank r gets its block of the elementwise op, counts[r] elements. Counts are equal on all ranks. */
cohort_status cohort_reduce_scatter_v(cohort_comm comm, const void* in, const int64_t* counts,
                                      const int64_t* displacements, void* out, cohort_type type, cohort_op op,
                                      const cohort_call_options* options, cohort_work* work);
/* Block s of rank r's `in` becomes block r of rank s's `out`. Every rank knows the counts of its own blocks. */
cohort_status cohort_all_to_all_v(cohort_comm comm, const void* in, const int64_t* in_counts,
                                  const int64_t* in_displacements, void* out, const int64_t* out_counts,
                                  const int64_t* out_displacements, cohort_type type,
                                  const cohort_call_options* options, cohort_work* work);

/* Is done on a rank only after all ranks have called it. */
cohort_status cohort_barrier(cohort_comm comm, const cohort_call_options* options, cohort_work* work);
/* Messages of a pair arrive in the order of the calls, independent of collectives. Count and type of both sides must
 * agree, else the receive fails, and the group. `peer` may be the caller. Small sends wait for nobody; a program must
 * not rely on it: to exchange, use works or a batch. */
cohort_status cohort_send(cohort_comm comm, const void* in, int64_t count, cohort_type type, int32_t peer,
                          const cohort_call_options* options, cohort_work* work);
cohort_status cohort_receive(cohort_comm comm, void* out, int64_t count, cohort_type type, int32_t peer,
                             const cohort_call_options* options, cohort_work* work);

/* ---- Batches: several calls as one, as between ncclGroupStart and ncclGroupEnd ----------------------------------- */

/* Calls on `comm` from here on are noted (most arguments are checked by cohort_batch_end). A batch that is open, or
 * none where one is to be ended, is COHORT_FAILED_PRECONDITION, and the group goes on. */
cohort_status cohort_batch_begin(cohort_comm comm);
/* Starts the noted calls together; sends and receives among them never block each other. All or none: a call that was
 * refused, here or when it was to be noted, refuses the batch. `work` as above; its result is that of the first call
 * that failed. Closes the batch in any case. */
cohort_status cohort_batch_end(cohort_comm comm, cohort_work* work);
/* Closes the batch without starting anything. */
cohort_status cohort_batch_cancel(cohort_comm comm);

/* ---- Windows: memory that all ranks of the host map, on which collectives move each byte once -------------------- */

/* Allocates `bytes` (0 is legal, and may differ between ranks) of zeroed memory, aligned to a page. Collective; blocks
 * until all members have mapped it. COHORT_RESOURCE_EXHAUSTED on all when one has no room: the group goes on.
 * COHORT_FAILED_PRECONDITION: a batch is open. Windows are host memory: options->memory is COHORT_HOST. */
cohort_status cohort_window_allocate(cohort_comm comm, size_t bytes, const cohort_call_options* options,
                                     cohort_window* window);
/* Its address and the number of bytes asked for. Either pointer may be null. Local. The memory serves every call of the
 * process until the window is freed. */
cohort_status cohort_window_memory(cohort_window window, void** data, size_t* bytes);
/* Frees the memory. Operations on it must be done. */
cohort_status cohort_window_free(cohort_window window);

/* ---- Reductions of the caller's ---------------------------------------------------------------------------------- */

/* Computes out[i] = a[i] op b[i] for `count` elements of `type` in host memory. `out` may be `a` or `b`. Called in the
 * thread that drives the operation, in any order of pieces, one call at a time per group. Must return, or throw in C++,
 * which fails the group: pthread_exit and longjmp out of it end the program or leave it undefined. Must not block, nor
 * communicate. cohort_comm_abort is allowed. */
typedef void (*cohort_reduce_function)(void* out, const void* a, const void* b, int64_t count, cohort_type type,
                                       void* context);
/* Makes an operation of an associative function. `name` must be equal on all members: it stands for the function when
 * calls are compared. `commutative` 0: operands are combined in the order of ranks. Local.
 *
 * Elements may be COHORT_BLOCK(n). Blocks of 1, 2, 4 and 8 bytes are reduced as numbers are. Other blocks are combined
 * in the order of ranks by two calls, for which no algorithm can be forced. cohort_all_reduce, _reduce and
 * _reduce_scatter then wait for the other ranks even when they are given a work, and are refused in a batch
 * (COHORT_UNIMPLEMENTED). They need extra memory for the parts of all ranks that this rank combines, one input where
 * parts are equal. A rank without that memory aborts the group. */
cohort_status cohort_op_create(cohort_reduce_function function, void* context, const char* name, int32_t commutative,
                               cohort_op* op);
/* Frees the operation. Calls under way keep what they need; `context` must stay valid until they are done. */
cohort_status cohort_op_free(cohort_op op);

/* ---- Works: operations under way --------------------------------------------------------------------------------- */

/* Blocks until the operation is done, at most `timeout_ns` (0: looks once; COHORT_FOREVER), and returns its result.
 * COHORT_PENDING: the time has passed, the operation goes on. Meanwhile this thread drives all operations of the
 * process, also those of other communicators. */
cohort_status cohort_work_wait(cohort_work work, int64_t timeout_ns);
/* Waits for `count` works, at most `timeout_ns` together. COHORT_PENDING if one is not done then; else the first error
 * in the order of the list, or COHORT_OK. A handle that is no work is an error of its place in the list: the others are
 * waited for. */
cohort_status cohort_work_wait_all(const cohort_work* works, int32_t count, int64_t timeout_ns);
/* Makes progress without waiting. COHORT_PENDING, or the result. */
cohort_status cohort_work_test(cohort_work work);
/* Makes a cudaStream_t wait for an operation on CUDA memory; does not wait itself. Waits for one on host memory. */
cohort_status cohort_work_wait_on_stream(cohort_work work, void* stream);
/* Frees the handle. An operation that is under way goes on by itself; its buffers stay in use until it is done. */
cohort_status cohort_work_free(cohort_work work);

#ifdef __cplusplus
}
#endif
