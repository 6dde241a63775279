// The operations of a communicator as Python calls them: which arguments each takes, and the call of comm that they
// make.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/python/module/arguments.h"
#include "cohort/python/module/pending_call.h"

namespace cohort::python {

// The arguments of all operations; kArgumentNames has their names.
enum class Argument {
  kInput,
  kOutput,
  kBuffer,  // input and output in one
  kOp,
  kRoot,
  kPeer,
  kInputCounts,
  kOutputCounts,
  kInputDisplacements,
  kOutputDisplacements,
  kTimeout,  // from here on: options that every operation takes, by name alone
  kAsyncOp,
  kAlgorithm,
  kDeterminism,
  kTag,
  kStream,
  kFactor,
};

struct Operation {
  comm::CollectiveKind kind;
  const char* name;
  std::span<const Argument> arguments;  // in their order
  size_t required;
  const char* doc;
};
// All of them, in the order of the methods.
std::span<const Operation> Operations();

// A call with its arguments read, ready to be started without the GIL.
struct PreparedCall {
  std::unique_ptr<PendingCall> pending = std::make_unique<PendingCall>();
  comm::CollectiveKind kind = comm::CollectiveKind::kBarrier;
  comm::ReduceOp op = comm::ReduceOp::kSum;
  int root = 0;
  int peer = -1;
  std::vector<int64_t> in_counts, out_counts, in_displacements, out_displacements;
  comm::CallOptions options;
  std::source_location site;
  bool async = false;

  // Reads what Python passed; needs the GIL. False: an exception is set.
  bool Read(const Operation& operation, const PassedArguments& passed);
  // Starts it and sets pending->work. Without the GIL.
  void Start(comm::Communicator& communicator);

 private:
  bool ReadMemory(std::span<PyObject* const> by_argument);
  bool ReadReduction(PyObject* op);
  bool ReadCounts(std::span<PyObject* const> by_argument);
  bool ReadOptions(std::span<PyObject* const> by_argument);
};

}  // namespace cohort::python
