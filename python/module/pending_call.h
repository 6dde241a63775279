// A started call and everything that it refers to, until it is done; and the Python object for it, dlaunch.Work.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/request.h"
#include "cohort/python/module/memory.h"
#include "cohort/python/module/python.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/engine/work.h"

namespace cohort::python {

// A reduction by a Python function f(out, a, b) over memoryviews of bytes, which computes out = a op b. It runs in the
// thread that drives the operation, with the GIL.
class PythonReduction {
 public:
  PythonReduction(PyObject* function, std::string name, bool commutative);
  PythonReduction(const PythonReduction&) = delete;
  PythonReduction& operator=(const PythonReduction&) = delete;
  const comm::UserReduceOp* op() const { return &op_; }

 private:
  static void Run(void* out, const void* a, const void* b, int64_t count, comm::DataType dtype, void* context);

  Ref function_;
  std::string name_;
  comm::UserReduceOp op_;
};

// Made and destroyed with the GIL.
struct PendingCall {
  runtime::Work work;
  Memory in;
  Memory out;
  std::vector<Memory> more;  // of an exchange
  std::unique_ptr<PythonReduction> reduction;
  std::shared_ptr<std::atomic<int>> source;  // of a receive from anyone: who sent; null for other calls
  runtime::ForkWatch forks;                  // a child has neither the call's threads nor its place
};

// Blocks without the GIL until the work is done or the deadline has passed: then the operation is still pending. In the
// main thread Python's signal handlers run meanwhile; nothing: one of them raised, and the operation goes on.
std::optional<absl::Status> WaitFor(runtime::Work& work, runtime::Deadline deadline);

// Names Python's main thread, the one that runs signal handlers.
void SetMainThread(unsigned long thread);

// The call is forgotten by Python but may be under way: it is kept until it is done.
void Abandon(std::unique_ptr<PendingCall> call);
// Frees the abandoned calls that are done. Cheap when there are none.
void SweepAbandoned();

// Adds the class Work to the module. False: an exception is set.
bool AddWork(PyObject* module);
PyObject* NewWork(std::unique_ptr<PendingCall> call);

}  // namespace cohort::python
