#include "cohort/python/module/pending_call.h"

#include <chrono>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cohort/python/module/arguments.h"
#include "cohort/python/module/errors.h"

namespace cohort::python {
namespace {

// How long the main thread waits before it looks whether a signal has come.
constexpr std::chrono::milliseconds kLookForSignals{200};

struct WorkObject {
  PyObject ob_base;
  std::unique_ptr<PendingCall> call;
};

PyTypeObject* work_type = nullptr;
unsigned long main_thread = 0;

std::vector<std::unique_ptr<PendingCall>>& Abandoned() {
  static auto* const calls = new std::vector<std::unique_ptr<PendingCall>>;  // threads may run after main has returned
  return *calls;
}

runtime::Work& WorkOf(PyObject* self) { return reinterpret_cast<WorkObject*>(self)->call->work; }

// A call that was under way when this process was forked: the parent completes it, in memory that is not ours.
bool IsParents(PyObject* self) {
  return !WorkOf(self).Done() && reinterpret_cast<WorkObject*>(self)->call->forks.InChild();
}

PyObject* Wait(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr const char* kNames[] = {"timeout"};
  PyObject* bound[1];
  if (!Bind({values, count, names}, "wait", kNames, 0, 1, bound)) return nullptr;
  const auto timeout = ReadSeconds(bound[0], std::chrono::nanoseconds::max());
  if (!timeout.has_value()) return nullptr;
  if (IsParents(self)) {
    return Raise(absl::FailedPreconditionError(
        "this process was forked while the call was under way, and only the parent can complete it: wait before the "
        "fork, or in the parent"));
  }
  const std::optional<absl::Status> status = WaitFor(WorkOf(self), runtime::Deadline::After(*timeout));
  if (!status.has_value()) return nullptr;
  if (!status->ok()) return Raise(*status);
  Py_RETURN_NONE;
}

PyObject* Done(PyObject* self, PyObject*) {
  if (WorkOf(self).Done()) Py_RETURN_TRUE;
  if (IsParents(self)) Py_RETURN_FALSE;
  {
    GilRelease release;  // a look makes progress, for programs that only look
    (void)WorkOf(self).Wait(runtime::Deadline::Now());
  }
  return PyBool_FromLong(WorkOf(self).Done());
}

PyObject* Exception(PyObject* self, PyObject*) {
  if (!WorkOf(self).Done() || WorkOf(self).status().ok()) Py_RETURN_NONE;
  Raise(WorkOf(self).status());
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Py_XDECREF(type), Py_XDECREF(trace);
  return value;
}

PyObject* GetSource(PyObject* self, void*) {
  const auto& source = reinterpret_cast<WorkObject*>(self)->call->source;
  const int rank = source == nullptr ? -1 : source->load(std::memory_order_relaxed);
  if (rank < 0) Py_RETURN_NONE;
  return PyLong_FromLong(rank);
}

// Calls make works. Python 3.9 has no flag that says so, and a type inherits the way to make its objects.
PyObject* RefuseNew(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "cannot create 'dlaunch.Work' instances");
  return nullptr;
}

void DeleteWork(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  auto* const self = reinterpret_cast<WorkObject*>(object);
  if (self->call != nullptr) Abandon(std::move(self->call));
  self->call.~unique_ptr();
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

}  // namespace

PythonReduction::PythonReduction(PyObject* function, std::string name, bool commutative)
    : function_(Ref::New(function)), name_(std::move(name)) {
  op_.function = Run;
  op_.context = this;
  op_.name = name_;
  op_.commutative = commutative;
}

void PythonReduction::Run(void* out, const void* a, const void* b, int64_t count, comm::DataType dtype, void* context) {
  const auto bytes = static_cast<Py_ssize_t>(count * static_cast<int64_t>(comm::SizeOf(dtype)));
  const auto view = [bytes](const void* data, int flags) {
    return Ref(PyMemoryView_FromMemory(static_cast<char*>(const_cast<void*>(data)), bytes, flags));
  };
  const PyGILState_STATE state = PyGILState_Ensure();
  bool raised;
  {
    const Ref views[] = {view(out, PyBUF_WRITE), view(a, PyBUF_READ), view(b, PyBUF_READ)};
    const Ref result(PyObject_CallFunctionObjArgs(static_cast<PythonReduction*>(context)->function_.get(),
                                                  views[0].get(), views[1].get(), views[2].get(), nullptr));
    raised = !result;
    if (raised) PyErr_WriteUnraisable(static_cast<PythonReduction*>(context)->function_.get());
  }
  PyGILState_Release(state);
  if (raised) throw std::runtime_error("the Python function raised; its traceback is on the standard error output");
}

std::optional<absl::Status> WaitFor(runtime::Work& work, runtime::Deadline deadline) {
  const bool main = PyThread_get_thread_ident() == main_thread;
  while (true) {
    absl::Status status;
    {
      GilRelease release;
      status = work.Wait(main ? Earlier(deadline, runtime::Deadline::After(kLookForSignals)) : deadline);
    }
    if (work.Done()) return work.status();
    if (main && PyErr_CheckSignals() != 0) return std::nullopt;
    if (deadline.passed()) return status;
  }
}

void Abandon(std::unique_ptr<PendingCall> call) {
  if (!call->work.Done()) Abandoned().push_back(std::move(call));
}

void SweepAbandoned() {
  auto& calls = Abandoned();
  if (calls.empty()) return;
  std::vector<std::unique_ptr<PendingCall>> done;  // freeing them may run Python code, and so come here again
  for (size_t i = 0; i < calls.size();) {
    if (!calls[i]->work.Done()) {
      ++i;
      continue;
    }
    done.push_back(std::move(calls[i]));
    calls[i] = std::move(calls.back());
    calls.pop_back();
  }
}

void SetMainThread(unsigned long thread) { main_thread = thread; }

bool AddWork(PyObject* module) {
  static PyMethodDef methods[] = {
      {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Wait)), METH_FASTCALL | METH_KEYWORDS,
       "wait(timeout=None): blocks, without the GIL, until the operation is done, and raises its error. After "
       "`timeout`\n"
       "seconds it raises DeadlineExceededError; the operation is then still pending."},
      {"done", Done, METH_NOARGS, "Whether the operation has ended. Makes progress."},
      {"exception", Exception, METH_NOARGS, "The error of an operation that has failed, or None."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef properties[] = {
      {"source", GetSource, nullptr, "The sender of a received message (group rank), or None.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(RefuseNew)},
      {Py_tp_dealloc, reinterpret_cast<void*>(DeleteWork)},
      {Py_tp_methods, methods},
      {Py_tp_getset, properties},
      {Py_tp_doc, const_cast<char*>("A started operation. It keeps the memory of its call until it is done, also when\n"
                                    "the program drops it.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"dlaunch.Work", sizeof(WorkObject), 0, Py_TPFLAGS_DEFAULT, slots};
  work_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return AddTo(module, "Work", reinterpret_cast<PyObject*>(work_type));
}

PyObject* NewWork(std::unique_ptr<PendingCall> call) {
  const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(work_type, Py_tp_alloc));
  auto* self = reinterpret_cast<WorkObject*>(alloc(work_type, 0));
  if (self == nullptr) {
    Abandon(std::move(call));
    return nullptr;
  }
  new (&self->call) std::unique_ptr<PendingCall>(std::move(call));
  return reinterpret_cast<PyObject*>(self);
}

}  // namespace cohort::python
