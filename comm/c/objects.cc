#include "cohort/comm/c/objects.h"

namespace cohort::comm::c {
namespace {

thread_local int reductions = 0;  // that this thread is within

// Counts the caller's function, also when it throws.
struct WithinReduction {
  WithinReduction() { ++reductions; }
  ~WithinReduction() { --reductions; }
  WithinReduction(const WithinReduction&) = delete;
  WithinReduction& operator=(const WithinReduction&) = delete;
};

}  // namespace

static_assert(sizeof(void*) == 8, "handles are numbers of 64 bits in pointers");

bool InReduction() { return reductions > 0; }

UserOperation::UserOperation(cohort_reduce_function function, void* context, std::string name, bool commutative)
    : function_(function), context_(context), name_(std::move(name)) {
  for (size_t i = 0; i < views_.size(); ++i) {
    View& view = views_[i];
    view.operation = this;
    view.type = i == 0 ? 0 : COHORT_BLOCK(1 << (i - 1));
    view.op.function = &Call;
    view.op.context = &view;
    view.op.name = name_;
    view.op.commutative = commutative;
  }
}

const UserReduceOp* UserOperation::ForBlocks(int64_t block_bytes) const {
  size_t power = 0;
  while (int64_t{1} << power < block_bytes) ++power;
  return &views_[1 + power].op;
}

void UserOperation::Combine(void* out, const void* a, const void* b, int64_t count, cohort_type type) const {
  const WithinReduction within;
  function_(out, a, b, count, type, context_);
}

void UserOperation::Call(void* out, const void* a, const void* b, int64_t count, DataType dtype, void* context) {
  const View& view = *static_cast<const View*>(context);
  view.operation->Combine(out, a, b, count, view.type == 0 ? static_cast<cohort_type>(dtype) : view.type);
}

cohort_status FailLookup(const char* function, const char* kind, Lookup found) {
  const std::string text = std::string("cohort_") + function + ": the " + kind;
  switch (found) {
    case Lookup::kNull:
      return Fail(COHORT_INVALID_HANDLE, text + " is null");
    case Lookup::kOtherKind:
      return Fail(COHORT_INVALID_HANDLE, text + " is no handle of that kind");
    case Lookup::kNeverMade:
      return Fail(COHORT_INVALID_HANDLE, text + " is a handle that this library never gave out");
    case Lookup::kFreed:
      return Fail(COHORT_INVALID_HANDLE, text + " has been freed");
    default:
      return Fail(COHORT_BUSY, text + " is in use by another thread: one thread at a time uses a handle");
  }
}

cohort_status FailInReduction(const char* function) {
  return Fail(COHORT_BUSY, std::string("cohort_") + function +
                               ": called within a reduction function, which may only ask for rank and size and abort");
}

cohort_status FailInBatch(const char* function) {
  return Fail(COHORT_FAILED_PRECONDITION,
              std::string("cohort_") + function + ": a batch is open on this communicator; end it first");
}

cohort_status FailInChild(const char* function) {
  return Fail(COHORT_FAILED_PRECONDITION,
              std::string("cohort_") + function +
                  ": this process was forked from a rank, whose place among the ranks it cannot take: communicate in "
                  "the parent, or fork before cohort_init");
}

}  // namespace cohort::comm::c
