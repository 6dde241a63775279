#include "cohort/python/module/errors.h"

#include <string>

namespace cohort::python {
namespace {

struct ErrorClass {
  absl::StatusCode code;
  const char* name;
  const char* doc;
  PyObject** also;  // a built-in class that programs catch for the same thing; null: none
  PyObject* type = nullptr;
};

PyObject* base_error = nullptr;

ErrorClass* Classes(size_t* count) {
  static ErrorClass classes[] = {
      {absl::StatusCode::kInvalidArgument, "InvalidArgumentError",
       "The caller's arguments are wrong. Decided locally; nothing was sent.", &PyExc_ValueError},
      {absl::StatusCode::kFailedPrecondition, "FailedPreconditionError",
       "The members' calls do not match (names them), or the runtime has been finalized.", nullptr},
      {absl::StatusCode::kUnavailable, "UnavailableError", "A member died (names it).", nullptr},
      {absl::StatusCode::kDeadlineExceeded, "DeadlineExceededError", "The timeout passed (names who is absent).",
       &PyExc_TimeoutError},
      {absl::StatusCode::kUnimplemented, "UnimplementedError", "Nothing can serve this call (names the remedy).",
       &PyExc_NotImplementedError},
      {absl::StatusCode::kAborted, "AbortedError", "A member aborted, or closed its communicator amid a call.",
       nullptr},
      {absl::StatusCode::kResourceExhausted, "ResourceExhaustedError", "Memory or another resource is used up.",
       nullptr},
  };
  *count = sizeof classes / sizeof classes[0];
  return classes;
}

}  // namespace

bool AddErrors(PyObject* module) {
  base_error = PyErr_NewExceptionWithDoc("dlaunch.Error",
                                         "Base of all errors of Cohort; its text names cause, place and remedy.",
                                         PyExc_RuntimeError, nullptr);
  if (!AddTo(module, "Error", base_error)) return false;
  size_t count = 0;
  ErrorClass* const classes = Classes(&count);
  for (size_t i = 0; i < count; ++i) {
    ErrorClass& error = classes[i];
    Ref bases(error.also == nullptr ? PyTuple_Pack(1, base_error) : PyTuple_Pack(2, base_error, *error.also));
    if (!bases) return false;
    const std::string name = std::string("dlaunch.") + error.name;
    error.type = PyErr_NewExceptionWithDoc(name.c_str(), error.doc, bases.get(), nullptr);
    if (!AddTo(module, error.name, error.type)) return false;
  }
  return true;
}

PyObject* Raise(const absl::Status& status) {
  PyObject* type = base_error;
  size_t count = 0;
  const ErrorClass* const classes = Classes(&count);
  for (size_t i = 0; i < count; ++i) {
    if (classes[i].code == status.code()) type = classes[i].type;
  }
  // Not every text is UTF-8: paths and the names of hosts are bytes.
  const Ref text(PyUnicode_DecodeUTF8(status.message().data(), static_cast<Py_ssize_t>(status.message().size()),
                                      "backslashreplace"));
  if (text) PyErr_SetObject(type, text.get());
  return nullptr;
}

}  // namespace cohort::python
