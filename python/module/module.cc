// The module dlaunch._comm: communicators over addresses, the buffer protocol and DLPack.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/types.h"
#include "cohort/python/module/arguments.h"
#include "cohort/python/module/call_site.h"
#include "cohort/python/module/communicator.h"
#include "cohort/python/module/errors.h"
#include "cohort/python/module/message_type.h"
#include "cohort/python/module/pending_call.h"
#include "cohort/python/module/pieces.h"
#include "cohort/python/module/python.h"
#include "cohort/python/module/session.h"
#include "cohort/runtime/ranges.h"

namespace cohort::python {
namespace {

// configure(folders, main_thread)
PyObject* Configure(PyObject*, PyObject* args) {
  PyObject* folders = nullptr;
  unsigned long main_thread = 0;
  if (!PyArg_ParseTuple(args, "Ok:configure", &folders, &main_thread)) return nullptr;
  std::vector<std::string> names;
  const Ref iterator(PyObject_GetIter(folders));
  if (!iterator) return nullptr;
  while (Ref item{PyIter_Next(iterator.get())}) {
    std::optional<std::string> name = ReadText(item.get());
    if (!name.has_value()) return nullptr;
    names.push_back(*std::move(name));
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  SetInternalFolders(std::move(names));
  SetMainThread(main_thread);
  Py_RETURN_NONE;
}

constexpr char kCapsule[] = "dlaunch.range";

void Close(PyObject* capsule) { delete static_cast<runtime::Range*>(PyCapsule_GetPointer(capsule, kCapsule)); }

// mark_step(number)
PyObject* MarkStep(PyObject*, PyObject* number) {
  PyObject* const whole = PyNumber_Index(number);  // numbers of NumPy too
  if (whole == nullptr) return nullptr;
  const unsigned long long step = PyLong_AsUnsignedLongLong(whole);
  Py_DECREF(whole);
  if (PyErr_Occurred() != nullptr) return nullptr;
  runtime::MarkStep(step);
  Py_RETURN_NONE;
}

// open_range(name)
PyObject* OpenRange(PyObject*, PyObject* name) {
  if (!runtime::RangesWanted()) Py_RETURN_NONE;
  const std::optional<std::string> text = ReadText(name);
  if (!text.has_value()) return nullptr;
  auto range = std::make_unique<runtime::Range>(*text);
  PyObject* const capsule = PyCapsule_New(range.get(), kCapsule, Close);
  if (capsule == nullptr) {
    range->Drop();
    return nullptr;
  }
  (void)range.release();
  return capsule;
}

template <typename Value>
PyObject* Names(int end) {
  Ref names(PyDict_New());
  for (int i = 1; names && i < end; ++i) {
    const Ref number(PyLong_FromLong(i));
    if (!number || PyDict_SetItemString(names.get(), std::string(Name(static_cast<Value>(i))).c_str(), number.get())) {
      return nullptr;
    }
  }
  return names.release();
}

bool AddNames(PyObject* module) {
  const Ref types(Names<comm::DataType>(comm::kDataTypes));
  const Ref ops(Names<comm::ReduceOp>(comm::kReduceOps));
  return AddTo(module, "data_types", types.get()) && AddTo(module, "reduce_ops", ops.get()) &&
         PyModule_AddStringConstant(module, "version", COHORT_VERSION) == 0;
}

PyMethodDef functions[] = {
    {"configure", Configure, METH_VARARGS,
     "configure(folders, main_thread): whose frames are no user's, and in which thread signal handlers run."},
    {"join", Join, METH_VARARGS,
     "join(pieces, filled): (address, owner) of memory for pieces (address, bytes) one after another, with their "
     "bytes."},
    {"part", Part, METH_VARARGS, "part(owner, pieces): copies the memory of join() to pieces (address, bytes)."},
    {"mark_step", MarkStep, METH_O, "mark_step(number): a step of the program begins."},
    {"open_range", OpenRange, METH_O,
     "open_range(name): the range lasts as long as the object that is returned. None: no trace is taken."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "dlaunch._comm",
    "Communicators over addresses, the buffer protocol and DLPack; programs use the package dlaunch.",
    -1,  // one for the process: the runtime behind it is one
    functions,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyObject* Make() {
  Ref module(PyModule_Create(&definition));
  if (!module || !AddErrors(module.get()) || !AddRuntime(module.get()) || !AddWork(module.get()) ||
      !AddCommunicator(module.get()) || !AddMessages(module.get()) || !AddNames(module.get())) {
    return nullptr;
  }
  return module.release();
}

}  // namespace cohort::python

PyMODINIT_FUNC PyInit__comm() { return cohort::python::Make(); }
